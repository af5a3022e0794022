//! Runs a study from a program: `cargo run -p pgassay-lab --example embed`.

use pgassay_lab::{
    Interrupt, LabEvent, Laboratory, LoadedStudy, RunContext, RunIdentity, ServerOptions, assemble,
};
use pgassay_model::plan::{Overrides, plan};
use pgassay_model::study::StudySource;

const STUDY: &str = r#"
question = "What does a work_mem of 64 MB save for a sort of 100,000 rows?"
length = { full = "3s", pairs = 4 }
[[script]]
name = "sort"
text = "select count(*) from (select i from generate_series(1, 100000) i order by -i) s;"
[[variant]]
name = "1 MB"
settings = { work_mem = "1MB" }
[[variant]]
name = "64 MB"
settings = { work_mem = "64MB" }
"#;

fn main() -> anyhow::Result<()> {
    let source = StudySource {
        file: "sort.toml".to_owned(),
        text: STUDY.to_owned(),
    };
    let study = LoadedStudy::new("sort", source.clone(), source.parse()?)?;
    let plan = plan(&study.study, &study.source, &Overrides::default())?;
    let context = RunContext {
        study: &study,
        options: &ServerOptions::default(),
        interrupt: &Interrupt::default(),
        events: &|event: &LabEvent<'_>| eprintln!("{event:?}"),
    };
    let mut outcome = Laboratory::run_plan(&plan, context)?;
    let ended_early = outcome.ended_early.take();
    let identity = RunIdentity::default();
    let run = assemble(&study, plan, outcome, ended_early.as_ref(), identity)?;
    println!("{:#?}", run.comparisons[0].verdict);
    Ok(())
}
