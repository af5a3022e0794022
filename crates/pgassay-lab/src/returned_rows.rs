//! Whether the statements of two variants with different texts return equally many rows.

use pgassay_model::plan::{Plan, Yield};
use pgassay_model::wording::grouped;
use pgassay_record::plans::{RunPlans, VariantPlanDifference};
use pgassay_record::run::Run;

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

/// The rows of the variant and of the baseline, of the first statement with another text that returned another number.
/// None if all such statements together returned as many: a script may send the same ones in another order.
fn differing(plans: &RunPlans, of_variant: &VariantPlanDifference) -> Option<(f64, f64)> {
    let text = |point: usize, statement: usize| {
        let statements = &plans.points.get(point)?.statements;
        statements.get(statement).map(|it| it.text.as_str())
    };
    let of_other_texts = of_variant.statements.iter().filter_map(|it| {
        let before = text(of_variant.baseline_plans, it.baseline)?;
        let after = text(of_variant.variant_plans, it.variant)?;
        let (rows, baseline_rows) = (it.difference.b.rows?, it.difference.a.rows?);
        (before != after).then_some((rows, baseline_rows))
    });
    let differ = |(a, b): (f64, f64)| (a - b).abs() >= 1.0;
    let pairs: Vec<(f64, f64)> = of_other_texts.collect();
    let totals = pairs
        .iter()
        .fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let first = pairs.into_iter().find(|it| differ(*it));
    first.filter(|_| differ(totals))
}

#[cfg(test)]
mod tests {
    use pgassay_explain::{PlanDifference, PlanFigures};
    use pgassay_record::plans::{PointPlans, StatementPlanDifference, StatementPlans};

    use super::*;

    /// Two scripts with these pairs of statements, which returned these numbers of rows.
    fn scripts(
        texts: &[[&str; 2]],
        rows: &[[Option<f64>; 2]],
    ) -> (RunPlans, VariantPlanDifference) {
        let statement = |text: &str| StatementPlans {
            text: text.to_owned(),
            ..StatementPlans::default()
        };
        let point = |of: usize| PointPlans {
            statements: texts.iter().map(|it| statement(it[of])).collect(),
            ..PointPlans::default()
        };
        let figures = |rows: Option<f64>| PlanFigures {
            rows,
            ..PlanFigures::default()
        };
        let difference = |(at, [a, b]): (usize, &[Option<f64>; 2])| StatementPlanDifference {
            baseline: at,
            variant: at,
            difference: PlanDifference {
                a: figures(*a),
                b: figures(*b),
                ..PlanDifference::default()
            },
        };
        let of_variant = VariantPlanDifference {
            variant: 1,
            variant_plans: 1,
            statements: rows.iter().enumerate().map(difference).collect(),
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
        let [few, many] = [Some(1.0), Some(10.0)];
        let texts = [["select 1", "table t"], ["table t", "select 1"]];
        let (plans, reordered) = scripts(&texts, &[[few, many], [many, few]]);
        assert_eq!(differing(&plans, &reordered), None);
        let (plans, other) = scripts(&texts, &[[few, many], [many, many]]);
        assert_eq!(differing(&plans, &other), Some((10.0, 1.0)));
    }

    /// Regression: a statement that returned fewer rows than the other was called faster without a word.
    #[test]
    fn another_number_of_rows_is_noticed_only_between_different_texts() {
        let of_texts = |texts: [&str; 2], rows: [Option<f64>; 2]| {
            let (plans, of_variant) = scripts(&[texts], &[rows]);
            differing(&plans, &of_variant)
        };
        let [one, other] = ["select 1", "select 2"];
        let rows = [Some(19_860.0), Some(986.0)];
        assert_eq!(of_texts([one, other], rows), Some((986.0, 19_860.0)));
        assert_eq!(of_texts([one, one], rows), None, "data or chance");
        assert_eq!(of_texts([one, other], [Some(5.0), Some(5.0)]), None);
        assert_eq!(of_texts([one, other], [Some(5.0), None]), None, "planned");
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
