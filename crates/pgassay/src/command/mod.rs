//! One module per subcommand, and what several of them share.

pub mod bench;
pub mod calibrate;
pub mod choice;
pub mod compare;
pub mod count;
pub mod curve;
pub mod doctor;
pub mod first_difference;
pub mod gate;
pub mod list;
pub mod profile;
pub mod report;
pub mod resume;
pub mod resume_flags;
pub mod run;
pub mod show;
pub mod studies;
pub mod study;
pub mod study_new;
pub mod tables;
pub mod timing;
pub mod top;
