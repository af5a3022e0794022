//! The seed of all random numbers. Source: `set_random_seed` in pgbench.c.

use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use pgassay_script::parse_seed;

use super::message;

/// Parses `--random-seed`; the default is the current time.
pub fn seed(text: Option<&str>) -> Option<u64> {
    let seed = match text {
        None | Some("time") => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_micros() as u64),
        Some("rand") => {
            let mut bytes = [0; 8];
            let drawn = std::fs::File::open("/dev/urandom")
                .and_then(|mut file| file.read_exact(&mut bytes));
            if drawn.is_err() {
                message::error("could not generate random seed");
                return None;
            }
            u64::from_ne_bytes(bytes)
        }
        Some(number) => {
            let Some(seed) = parse_seed(number) else {
                message::error(&format!("unrecognized random seed option \"{number}\""));
                message::detail("Expecting an unsigned integer, \"time\" or \"rand\".");
                return None;
            };
            seed
        }
    };
    if text.is_some() {
        message::info(&format!("setting random seed to {seed}"));
    }
    Some(seed)
}
