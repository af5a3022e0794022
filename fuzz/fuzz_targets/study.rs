//! Any study file yields a plan or an error with its position, and the plan keeps its limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pgassay_model::plan::{Overrides, plan};
use pgassay_model::study::StudySource;

fuzz_target!(|data: &[u8]| {
    let source = StudySource {
        file: "fuzzed.toml".to_owned(),
        text: String::from_utf8_lossy(data).into_owned(),
    };
    let study = match source.parse() {
        Ok(study) => study,
        Err(error) => {
            let _ = error.to_string();
            return;
        }
    };
    for quick in [false, true] {
        let overrides = Overrides {
            quick,
            ..Overrides::default()
        };
        match plan(&study, &source, &overrides) {
            Ok(plan) => {
                assert!(plan.points.len() <= 10_000);
                assert!(plan.servers.iter().all(|it| it.connections <= 0x3_ffff));
                let _ = (plan.trials(), plan.estimated_us(), plan.block(0));
            }
            Err(error) => {
                let _ = error.to_string();
            }
        }
    }
});
