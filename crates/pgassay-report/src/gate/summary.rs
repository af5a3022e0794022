//! A gate's decision as JSON.

use serde_json::{Value, json};

use super::result::{GateLimit, GateResult, GateVerdict};

/// The field `gate` of the JSON that `pgassay gate` prints: `limit` as `--fail-if` takes it, `verdict` (`pass`,
/// `regression`, `inconclusive` or `not comparable`) of all comparisons together, the deciding `sentence`, and
/// `comparisons`. In these, `figures` is what was measured, or why there is no verdict; `cost_ratio` is how many
/// times as much a transaction costs as the baseline's, `null` if unknown.
pub fn summary(results: &[GateResult], limit: GateLimit, sentence: &str) -> Value {
    let comparisons = results.iter().map(|it| {
        json!({
            "variant": it.names.variant,
            "baseline": it.names.baseline,
            "condition": it.names.condition,
            "verdict": it.verdict.word(),
            "figures": it.figures,
            "cost_ratio": it.cost_ratio.filter(|ratio| ratio.is_finite()),
            "is_better": it.is_better,
        })
    });
    json!({
        "limit": limit.to_string(),
        "verdict": GateVerdict::of(results).word(),
        "sentence": sentence,
        "comparisons": comparisons.collect::<Vec<_>>(),
    })
}
