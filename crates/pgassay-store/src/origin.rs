//! What is saved about a run before its first trial, so that it can be listed and continued.

use pgassay_model::plan::{Overrides, Plan};
use pgassay_model::study::Study;
use pgassay_record::run::{ServerFacts, Warning};
use serde::{Deserialize, Serialize};

/// The format of the file of trials.
pub(crate) const TRIALS_SCHEMA: &str = "pgassay.trials/1";

/// What is known about a run before its first trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStart {
    /// The study's name.
    pub study_name: String,
    /// The study's question.
    pub question: String,
    /// When the run started, microseconds since 1970.
    pub started_us: i64,
    /// The version of pgassay.
    pub pgassay_version: String,
    /// The plan, which trials refer to by index.
    pub plan: Plan,
    /// What is needed to continue the run; `None` in runs of versions that could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<RunOrigin>>,
}

/// What is needed to continue a run, in addition to its plan and trials. It has no permissions: the user who
/// continues a run gives them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunOrigin {
    /// The study, with the text of script files and without secrets.
    pub study: Study,
    /// The file that the study came from, as the user named it.
    pub study_file: String,
    /// What the command line changed in the study.
    pub overrides: Overrides,
    /// The seed that the user gave, if any.
    #[serde(default)]
    pub seed: Option<u64>,
    /// The machine.
    pub machine: MachineIdentity,
    /// Directory for downloaded versions, if the user named one.
    #[serde(default)]
    pub cache: Option<String>,
    /// Operating system user for the servers, if the user named one.
    #[serde(default)]
    pub run_as: Option<String>,
    /// Parent of temporary data directories, if the user named one.
    #[serde(default)]
    pub data_parent: Option<String>,
    /// Whether instructions are counted after the trials.
    #[serde(default)]
    pub counted: bool,
    /// Whether suggested fixes are tried after the trials.
    #[serde(default)]
    pub try_fixes: bool,
    /// Warnings from before the first trial, for example about variants that cannot run here.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// A machine, to recognize it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIdentity {
    /// Processor model and number of CPUs.
    pub name: String,
    /// Hash of the name and the machine ID.
    pub key: String,
    /// The kernel release.
    pub kernel: String,
}

/// The first line of the file of trials.
#[derive(Serialize, Deserialize)]
pub(crate) struct FirstLine {
    pub(crate) schema: String,
    pub(crate) start: RunStart,
}

/// A later line of the file of trials that is not a trial.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunMarker {
    /// The servers are running.
    Servers(Vec<ServerFacts>),
    /// Another process continues the run.
    Resumed {
        /// When, microseconds since 1970.
        at_us: i64,
    },
}
