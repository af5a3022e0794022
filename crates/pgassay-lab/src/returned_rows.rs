//! Whether the statements of two variants with different texts return equally many rows.

use pgassay_model::plan::{Plan, Yield};
use pgassay_model::wording::grouped;
use pgassay_record::plans::{RunPlans, VariantPlanDifference};
use pgassay_record::run::Run;

use crate::plans::rows_returned;

/// Variants that are named.
const SHOWN_MAX: usize = 3;

/// The variants whose statements returned another number of rows than the baseline's when EXPLAIN executed them with
/// the same values, as a sentence. Only those with another text, which may ask another question by mistake.
pub(crate) fn sentence(run: &Run) -> Option<String> {
    let plans = run.plans.as_ref()?;
    let mut found: Vec<String> = Vec::new();
    for of_variant in &plans.differences {
        let baseline = run.plan.baseline_of(of_variant.variant);
        let [yields, baseline_yields] =
            [of_variant.variant, baseline].map(|it| yields(&run.plan, it));
        // Who declares what a transaction yields knows that they differ.
        if yields.is_some() || baseline_yields.is_some() {
            continue;
        }
        let Some((rows, baseline_rows)) = differing(plans, of_variant) else {
            continue;
        };
        let names = [of_variant.variant, baseline].map(|it| &run.plan.variants[it][..]);
        let others = of_variant.same + of_variant.not_compared;
        let is_single = of_variant.statements.len() == 1 && others == 0;
        let text = difference(names, [rows, baseline_rows], is_single);
        if !found.contains(&text) {
            found.push(text);
        }
    }
    if found.is_empty() {
        return None;
    }
    found.truncate(SHOWN_MAX);
    Some(format!(
        "different results: executed once with the same values, {}; check that the statements answer the same question",
        found.join("; ")
    ))
}

fn yields(plan: &Plan, variant: usize) -> Option<&Yield> {
    let mut points = plan.points.iter().filter(|it| it.variant == variant);
    points.find_map(|it| it.gives.as_ref())
}

/// `"b" returned 986 rows and "a" 19 860`; of scripts with several statements, a statement of each.
fn difference([variant, baseline]: [&str; 2], rows: [f64; 2], is_single: bool) -> String {
    let s = if rows[0].round() as u64 == 1 { "" } else { "s" };
    let [rows, baseline_rows] = rows.map(grouped);
    if is_single {
        format!("\"{variant}\" returned {rows} row{s} and \"{baseline}\" {baseline_rows}")
    } else {
        format!(
            "a statement of \"{variant}\" returned {rows} row{s} and that of \"{baseline}\" {baseline_rows}"
        )
    }
}

/// The rows of the variant and of the baseline, of the first statement with another text that returned another number,
/// whether the plans differ or not. None if all such statements together returned as many: a script may send the same
/// ones in another order.
fn differing(plans: &RunPlans, of_variant: &VariantPlanDifference) -> Option<(f64, f64)> {
    let points = [of_variant.baseline_plans, of_variant.variant_plans];
    let [before, after] = points.map(|it| plans.points.get(it));
    let pairs = rows_returned(&before?.statements, &after?.statements);
    let differ = |rows: &[f64; 2]| (rows[0] - rows[1]).abs() >= 1.0;
    let totals = [0, 1].map(|of| pairs.iter().map(|it| it[of]).sum());
    let first = pairs.into_iter().find(differ).filter(|_| differ(&totals));
    first.map(|[baseline_rows, rows]| (rows, baseline_rows))
}

#[cfg(test)]
mod tests {
    use pgassay_record::plans::{PointPlans, StatementPlan, StatementPlans};

    use super::*;

    /// Two scripts with these pairs of statements, which returned these numbers of rows by the same plan.
    fn scripts(
        texts: &[[&str; 2]],
        rows: &[[Option<u32>; 2]],
    ) -> (RunPlans, VariantPlanDifference) {
        let statement = |text: &str, rows: Option<u32>| {
            let actual = rows.map(|rows| format!(r#", "Actual Rows": {rows}, "Actual Loops": 1"#));
            let actual = actual.unwrap_or_default();
            StatementPlans {
                text: text.to_owned(),
                plans: vec![StatementPlan {
                    kind: None,
                    is_used: true,
                    is_executed: rows.is_some(),
                    execution_error: None,
                    json: format!(r#"[{{"Plan": {{"Node Type": "Function Scan"{actual}}}}}]"#),
                }],
                ..StatementPlans::default()
            }
        };
        let point = |of: usize| {
            let statements = texts.iter().zip(rows);
            PointPlans {
                statements: statements
                    .map(|(text, rows)| statement(text[of], rows[of]))
                    .collect(),
                ..PointPlans::default()
            }
        };
        let of_variant = VariantPlanDifference {
            variant: 1,
            variant_plans: 1,
            ..VariantPlanDifference::default()
        };
        let plans = RunPlans {
            points: vec![point(0), point(1)],
            differences: Vec::new(),
        };
        (plans, of_variant)
    }

    /// Regression: a script with the same statements in another order "returned 1 row" instead of 10.
    #[test]
    fn another_order_of_the_same_statements_returns_as_many_rows() {
        let [few, many] = [Some(1), Some(10)];
        let texts = [["select 1", "table t"], ["table t", "select 1"]];
        let (plans, reordered) = scripts(&texts, &[[few, many], [many, few]]);
        assert_eq!(differing(&plans, &reordered), None);
        let (plans, other) = scripts(&texts, &[[few, many], [many, many]]);
        assert_eq!(differing(&plans, &other), Some((10.0, 1.0)));
    }

    /// Regression: plans that count as the same returned 1000 and 1001 rows without a word.
    #[test]
    fn rows_of_equal_plans_are_compared_too() {
        let (plans, of_variant) = scripts(&[["select 1", "select 2"]], &[[Some(1000), Some(1001)]]);
        assert_eq!(differing(&plans, &of_variant), Some((1001.0, 1000.0)));
    }

    /// Regression: a statement that returned fewer rows than the other was called faster without a word.
    #[test]
    fn another_number_of_rows_is_noticed_only_between_different_texts() {
        let of_texts = |texts: [&str; 2], rows: [Option<u32>; 2]| {
            let (plans, of_variant) = scripts(&[texts], &[rows]);
            differing(&plans, &of_variant)
        };
        let [one, other] = ["select 1", "select 2"];
        let rows = [Some(19_860), Some(986)];
        assert_eq!(of_texts([one, other], rows), Some((986.0, 19_860.0)));
        assert_eq!(of_texts([one, one], rows), None, "data or chance");
        assert_eq!(of_texts([one, other], [Some(5), Some(5)]), None);
        assert_eq!(of_texts([one, other], [Some(5), None]), None, "planned");
        let text = |rows, is_single| difference(["b", "a"], rows, is_single);
        let of_one = text([986.0, 19_860.0], true);
        assert_eq!(of_one, "\"b\" returned 986 rows and \"a\" 19 860");
        let of_several = text([1.0, 10.0], false);
        assert_eq!(
            of_several,
            "a statement of \"b\" returned 1 row and that of \"a\" 10"
        );
    }
}
