//! The plans of a run's statements as EXPLAIN describes them, and how they differ between variants.

use pgassay_explain::{PlanDifference, PlanKind, QueryPlan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The plans of a run's statements. They were taken after the last trial, with the same values for all variants.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPlans {
    /// The statements of each point, ordered by variant.
    pub points: Vec<PointPlans>,
    /// What differs between each variant and the baseline.
    pub differences: Vec<VariantPlanDifference>,
}

/// The plans of the statements of one variant, under one or more conditions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointPlans {
    /// Index into the plan's variants.
    pub variant: usize,
    /// Indices into the plan's conditions. Conditions that differ only in their clients have the same plans.
    pub conditions: Vec<usize>,
    /// The different statements in the order of the scripts. Branches that the values do not reach are left out.
    pub statements: Vec<StatementPlans>,
    /// Number of different statements that were not explained because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

/// The plans of one statement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementPlans {
    /// The script that contains it.
    pub script: String,
    /// Its line in the script, from 1.
    pub line: u32,
    /// The statement as the script has it.
    pub text: String,
    /// The values of its variables, in the order of the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<VariableValue>,
    /// Its plans: one, or a custom and a generic one if the protocol is `prepared`. Empty if it could not be
    /// explained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<StatementPlan>,
    /// Why there is no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingPlan>,
    /// How the generic plan differs from the custom one; `None` if it does the same, or without one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generic_difference: Option<PlanDifference>,
}

/// A variable of a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VariableValue {
    /// Its name.
    pub name: String,
    /// Its value as text; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// One plan of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatementPlan {
    /// Generic or custom; `None` for a statement without parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PlanKind>,
    /// Whether it is the plan of most executions under load: for a prepared statement, the one that the server
    /// chooses from the sixth execution on.
    pub is_used: bool,
    /// Whether the statement was executed (EXPLAIN ANALYZE).
    pub is_executed: bool,
    /// Whether another execution of the same text returned or changed another number of rows: those of a random
    /// sample, for example, cannot be compared.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rows_vary: bool,
    /// Why it was only planned, if it failed or took too long on a server that pgassay started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_error: Option<String>,
    /// The answer of EXPLAIN (FORMAT JSON), without indentation. Viewers of plans accept it.
    pub json: String,
}

/// Why a statement has no plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissingPlan {
    /// The kind of reason.
    pub reason: MissingPlanReason,
    /// The reason for people.
    pub message: String,
}

/// The kinds of reasons why a statement has no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissingPlanReason {
    /// EXPLAIN does not accept it, for example a utility command such as `BEGIN`.
    NotExplainable,
    /// EXPLAIN failed.
    Failed,
}

/// How the plans of a variant differ from the baseline's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantPlanDifference {
    /// Index into the plan's variants; never the baseline's.
    pub variant: usize,
    /// Indices into the plan's conditions.
    pub conditions: Vec<usize>,
    /// The baseline's statements: a position in [`RunPlans::points`].
    pub baseline_plans: usize,
    /// The variant's statements: a position in [`RunPlans::points`].
    pub variant_plans: usize,
    /// The statements whose plans differ.
    pub statements: Vec<StatementPlanDifference>,
    /// Number of statements with the same plan.
    pub same: u32,
    /// Number of statements that could not be compared: without a plan on one side, or without a counterpart.
    pub not_compared: u32,
}

/// How the plans of one statement differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementPlanDifference {
    /// The baseline's statement: a position in [`PointPlans::statements`].
    pub baseline: usize,
    /// The variant's statement: a position in [`PointPlans::statements`].
    pub variant: usize,
    /// What differs.
    pub difference: PlanDifference,
}

// Serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

// Serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl StatementPlans {
    /// The plan to compare: the one of most executions, else the first.
    pub fn used(&self) -> Option<&StatementPlan> {
        self.plans
            .iter()
            .find(|it| it.is_used)
            .or(self.plans.first())
    }
}

impl StatementPlan {
    /// The plan as a tree; `None` if the text is damaged.
    pub fn tree(&self) -> Option<QueryPlan> {
        QueryPlan::parse(&self.json).ok()
    }
}
