//! Whether the statements of two variants with different texts return or change equally many rows.

use pgassay_model::plan::{Plan, Yield};
use pgassay_model::wording::grouped;
use pgassay_record::plans::{RunPlans, VariantPlanDifference};
use pgassay_record::run::Run;

use crate::plans::{StatementRows, row_counts};

/// Variants that are named.
const SHOWN_MAX: usize = 3;

/// The variants whose statements returned or changed another number of rows than the baseline's when EXPLAIN executed them with
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
        let Some(counts) = differing(plans, of_variant) else {
            continue;
        };
        let names = [of_variant.variant, baseline].map(|it| &run.plan.variants[it][..]);
        let others = of_variant.same + of_variant.not_compared;
        let is_single = of_variant.statements.len() == 1 && others == 0;
        let text = difference(names, counts, is_single);
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

/// `"b" returned 986 rows and "a" 19,860`; of scripts with several statements, a statement of each.
fn difference([variant, baseline]: [&str; 2], counts: StatementRows, is_single: bool) -> String {
    let [_, of_variant] = counts.rows;
    let s = if of_variant.round() as u64 == 1 {
        ""
    } else {
        "s"
    };
    let did = if counts.are_changed {
        "changed"
    } else {
        "returned"
    };
    let [baseline_rows, rows] = counts.rows.map(grouped);
    if is_single {
        format!("\"{variant}\" {did} {rows} row{s} and \"{baseline}\" {baseline_rows}")
    } else {
        format!(
            "a statement of \"{variant}\" {did} {rows} row{s} and that of \"{baseline}\" {baseline_rows}"
        )
    }
}

/// The rows of the first statement with another text that returned or changed another number, whether the plans differ
/// or not. None if all such statements together did as many: a script may send the same ones in another order.
fn differing(plans: &RunPlans, of_variant: &VariantPlanDifference) -> Option<StatementRows> {
    let points = [of_variant.baseline_plans, of_variant.variant_plans];
    let [before, after] = points.map(|it| plans.points.get(it));
    let pairs = row_counts(&before?.statements, &after?.statements);
    let of_all = |are_changed: bool| {
        let alike = || pairs.iter().filter(|it| it.are_changed == are_changed);
        StatementRows {
            are_changed,
            rows: [0, 1].map(|of| alike().map(|it| it.rows[of]).sum()),
        }
    };
    let mut differing = pairs.iter().filter(|it| it.differ());
    differing
        .find(|it| of_all(it.are_changed).differ())
        .copied()
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
                    rows_vary: false,
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

    fn rows_of(plans: &RunPlans, of_variant: &VariantPlanDifference) -> Option<[f64; 2]> {
        differing(plans, of_variant).map(|it| it.rows)
    }

    /// Regression: a script with the same statements in another order "returned 1 row" instead of 10.
    #[test]
    fn another_order_of_the_same_statements_returns_as_many_rows() {
        let [few, many] = [Some(1), Some(10)];
        let texts = [["select 1", "table t"], ["table t", "select 1"]];
        let (plans, reordered) = scripts(&texts, &[[few, many], [many, few]]);
        assert_eq!(rows_of(&plans, &reordered), None);
        let (plans, other) = scripts(&texts, &[[few, many], [many, many]]);
        assert_eq!(rows_of(&plans, &other), Some([1.0, 10.0]));
    }

    /// Regression: plans that count as the same returned 1000 and 1001 rows without a word.
    #[test]
    fn rows_of_equal_plans_are_compared_too() {
        let (plans, of_variant) = scripts(&[["select 1", "select 2"]], &[[Some(1000), Some(1001)]]);
        assert_eq!(rows_of(&plans, &of_variant), Some([1000.0, 1001.0]));
    }

    /// Regression: a statement that returned fewer rows than the other was called faster without a word.
    #[test]
    fn another_number_of_rows_is_noticed_only_between_different_texts() {
        let of_texts = |texts: [&str; 2], rows: [Option<u32>; 2]| {
            let (plans, of_variant) = scripts(&[texts], &[rows]);
            rows_of(&plans, &of_variant)
        };
        let [one, other] = ["select 1", "select 2"];
        let rows = [Some(19_860), Some(986)];
        assert_eq!(of_texts([one, other], rows), Some([19_860.0, 986.0]));
        assert_eq!(of_texts([one, one], rows), None, "data or chance");
        assert_eq!(of_texts([one, other], [Some(5), Some(5)]), None);
        assert_eq!(of_texts([one, other], [Some(5), None]), None, "planned");
        let text = |rows, are_changed, is_single| {
            difference(["b", "a"], StatementRows { are_changed, rows }, is_single)
        };
        let of_one = text([19_860.0, 986.0], false, true);
        assert_eq!(of_one, "\"b\" returned 986 rows and \"a\" 19,860");
        let of_writes = text([50.0, 100.0], true, true);
        assert_eq!(of_writes, "\"b\" changed 100 rows and \"a\" 50");
        let of_several = text([10.0, 1.0], false, false);
        assert_eq!(
            of_several,
            "a statement of \"b\" returned 1 row and that of \"a\" 10"
        );
    }
}
