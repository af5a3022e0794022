//! Keeps results: one directory per run and an SQLite index.
