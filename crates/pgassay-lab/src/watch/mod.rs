//! Watches a live server without a study.

pub mod catalog;
