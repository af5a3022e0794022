//! How the plans of each variant differ from the baseline's. Pure.

use pgassay_explain::PlanDifference;
use pgassay_model::plan::Plan;
use pgassay_record::plans::{
    MissingPlanReason, PointPlans, StatementPlan, StatementPlanDifference, StatementPlans,
    VariantPlanDifference,
};
use pgassay_script::{SqlLexeme, lexemes};

use super::row_counts::StatementRows;

/// The differences of all variants, by condition, then by variant. Conditions with the same plans share an entry.
pub fn differences(plan: &Plan, points: &[PointPlans]) -> Vec<VariantPlanDifference> {
    let mut found: Vec<VariantPlanDifference> = Vec::new();
    let of = |condition: usize, variant: usize| {
        points
            .iter()
            .position(|it| it.variant == variant && it.conditions.contains(&condition))
    };
    for condition in 0..plan.conditions.len() {
        for variant in 1..plan.variants.len() {
            let baseline = plan.baseline_of(variant);
            let (Some(a), Some(b)) = (of(condition, baseline), of(condition, variant)) else {
                continue;
            };
            let known = found
                .iter_mut()
                .find(|it| (it.baseline_plans, it.variant_plans) == (a, b));
            match known {
                Some(known) => known.conditions.push(condition),
                None => found.push(VariantPlanDifference {
                    variant,
                    conditions: vec![condition],
                    baseline_plans: a,
                    variant_plans: b,
                    ..compared(&points[a].statements, &points[b].statements)
                }),
            }
        }
    }
    found
}

fn compared(baseline: &[StatementPlans], variant: &[StatementPlans]) -> VariantPlanDifference {
    let mut found = VariantPlanDifference::default();
    let explained = [explainable(baseline), explainable(variant)];
    let most = explained.iter().map(Vec::len).max().unwrap_or(0);
    let pairs = pairs(baseline, variant, explained);
    let unpaired = most - pairs.len();
    found.not_compared = unpaired as u32;
    for (a, b) in pairs {
        let Some(difference) = between(&baseline[a], &variant[b]) else {
            found.not_compared += 1;
            continue;
        };
        if difference.is_none() {
            found.same += 1;
        } else {
            found.statements.push(StatementPlanDifference {
                baseline: a,
                variant: b,
                difference,
            });
        }
    }
    found
}

/// None if a plan is missing.
fn between(a: &StatementPlans, b: &StatementPlans) -> Option<PlanDifference> {
    let trees = [a, b].map(|it| it.used().and_then(StatementPlan::tree));
    let [Some(before), Some(after)] = trees else {
        return None;
    };
    let mut difference = PlanDifference::between(&before, &after);
    let texts = [&a.text[..], &b.text];
    forget_rows_kept(&mut difference, texts);
    forget_blocks_of_one_table(&mut difference, texts.map(creates_table));
    Some(difference)
}

/// The rows that the statements of the baseline and of a variant returned or changed, of each two that answer the same
/// question in other words.
pub fn row_counts(baseline: &[StatementPlans], variant: &[StatementPlans]) -> Vec<StatementRows> {
    let explained = [explainable(baseline), explainable(variant)];
    let pairs = pairs(baseline, variant, explained).into_iter();
    let pairs = pairs.map(|(a, b)| [&baseline[a], &variant[b]]);
    pairs
        .filter(|[a, b]| a.text != b.text)
        .filter_map(|statements| {
            let plans = statements.map(StatementPlans::used);
            let [a, b] = [plans[0]?, plans[1]?];
            if a.rows_vary || b.rows_vary {
                return None;
            }
            let keeps = statements.map(|it| keeps_rows(&it.text));
            StatementRows::of([&a.tree()?, &b.tree()?], keeps)
        })
        .collect()
}

/// CREATE TABLE AS returns no rows, and a statement that writes returns some only if it says so.
fn forget_rows_kept(difference: &mut PlanDifference, [a, b]: [&str; 2]) {
    for (figures, text) in [(&mut difference.a, a), (&mut difference.b, b)] {
        if keeps_rows(text) {
            figures.rows = None;
        }
    }
}

/// A plan of CREATE TABLE AS has only what its query reads, not what it writes to the table, unlike one of INSERT.
fn forget_blocks_of_one_table(difference: &mut PlanDifference, creates: [bool; 2]) {
    if creates[0] != creates[1] {
        for figures in [&mut difference.a, &mut difference.b] {
            (figures.buffers, figures.wal_bytes) = (None, None);
        }
    }
}

fn keeps_rows(text: &str) -> bool {
    creates_table(text)
        || first_word_is(text, &["insert", "update", "delete", "merge"])
            && !has_word(text, "returning")
}

/// `CREATE TABLE … AS`, or `SELECT … INTO`.
fn creates_table(text: &str) -> bool {
    first_word_is(text, &["create"]) || first_word_is(text, &["select"]) && has_word(text, "into")
}

fn first_word_is(text: &str, one_of: &[&str]) -> bool {
    let mut words = words(text);
    words
        .next()
        .is_some_and(|word| one_of.iter().any(|it| word.eq_ignore_ascii_case(it)))
}

fn has_word(text: &str, word: &str) -> bool {
    words(text).any(|it| it.eq_ignore_ascii_case(word))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let all = lexemes(text).filter(|(kind, _)| *kind != SqlLexeme::Blank);
    all.map(|(_, text)| text)
}

/// The positions of the statements that EXPLAIN accepts: one script may send BEGIN and COMMIT and the other not.
fn explainable(statements: &[StatementPlans]) -> Vec<usize> {
    let is_refused = |it: &StatementPlans| {
        let missing = it.missing.as_ref();
        missing.is_some_and(|it| it.reason == MissingPlanReason::NotExplainable)
    };
    let all = 0..statements.len();
    all.filter(|&at| !is_refused(&statements[at])).collect()
}

/// The statements that answer the same question, of those that EXPLAIN accepts: all in order if there are equally
/// many, for a variant may have another text; else those in the same line of the same script.
fn pairs(
    a: &[StatementPlans],
    b: &[StatementPlans],
    [of_a, of_b]: [Vec<usize>; 2],
) -> Vec<(usize, usize)> {
    if of_a.len() == of_b.len() {
        return of_a.into_iter().zip(of_b).collect();
    }
    let mut found: Vec<(usize, usize)> = Vec::new();
    for at in of_a {
        let statement = &a[at];
        let is_same = |other: &StatementPlans| {
            (&other.script, other.line) == (&statement.script, statement.line)
        };
        let is_free = |it: usize| found.iter().all(|(_, taken)| *taken != it);
        let mut of_b = of_b.iter().copied();
        let partner = of_b.find(|&it| is_same(&b[it]) && is_free(it));
        found.extend(partner.map(|it| (at, it)));
    }
    found
}

#[cfg(test)]
mod tests {
    use pgassay_record::plans::MissingPlan;

    use super::*;

    fn statement(line: u32, node: &str) -> StatementPlans {
        let json = format!(r#"[{{"Plan": {{"Node Type": "{node}", "Alias": "t"}}}}]"#);
        StatementPlans {
            line,
            plans: vec![StatementPlan {
                kind: None,
                is_used: true,
                rows_vary: false,
                is_executed: false,
                execution_error: None,
                json,
            }],
            ..StatementPlans::default()
        }
    }

    #[test]
    fn statements_in_the_same_line_are_compared_and_others_are_counted() {
        let baseline = [statement(1, "Seq Scan"), statement(2, "Seq Scan")];
        let variant = [
            statement(1, "Seq Scan"),
            statement(2, "Index Scan"),
            statement(3, "Seq Scan"),
        ];
        let found = compared(&baseline, &variant);
        assert_eq!((found.same, found.not_compared), (1, 1));
        assert_eq!(found.statements.len(), 1);
        assert_eq!(
            (found.statements[0].baseline, found.statements[0].variant),
            (1, 1)
        );
        // Another text in another line, but as many statements.
        let other = compared(&baseline[..1], &variant[1..2]);
        assert_eq!((other.same, other.statements.len()), (0, 1));
    }

    /// Regression: a script with BEGIN and COMMIT was not compared with one without.
    #[test]
    fn transaction_commands_do_not_keep_statements_from_being_compared() {
        let begin = StatementPlans {
            missing: Some(MissingPlan {
                reason: MissingPlanReason::NotExplainable,
                message: String::new(),
            }),
            ..StatementPlans::default()
        };
        let in_transaction = [begin.clone(), statement(2, "Index Scan"), begin];
        let found = compared(&[statement(1, "Seq Scan")], &in_transaction);
        assert_eq!((found.statements.len(), found.not_compared), (1, 0));
        assert_eq!(found.statements[0].variant, 1);
    }

    /// Regression: a table "returned 20,000 rows", and the blocks of a query were those of "the whole statement".
    #[test]
    fn a_statement_that_creates_a_table_returns_no_rows_and_its_plan_has_not_all_blocks() {
        let executed = |text: &str, node: &str, rows: u32| {
            let json = format!(
                r#"[{{"Plan": {{"Node Type": "{node}", "Actual Rows": {rows}, "Actual Loops": 1,
                "Shared Hit Blocks": {rows}}}}}]"#
            );
            let mut statement = statement(1, node);
            statement.text = text.to_owned();
            statement.plans[0].json = json;
            statement
        };
        let compared_with = |text: &str, other: &str| {
            let baseline = executed(text, "Seq Scan", 20_000);
            let found = compared(&[baseline], &[executed(other, "Limit", 5)]);
            let difference = &found.statements[0].difference;
            let sides = [&difference.a, &difference.b];
            (
                sides.map(|it| it.rows),
                sides.map(|it| it.buffers.is_some()),
            )
        };
        let both = ([Some(20_000.0), Some(5.0)], [true, true]);
        assert_eq!(compared_with("table t", "select 1"), both);
        let creating = [
            "-- all\n CREATE table u as table t",
            "select * into u from t",
        ];
        for text in creating {
            let of_one = ([None, Some(5.0)], [false, false]);
            assert_eq!(compared_with(text, "select 1"), of_one, "{text}");
            let of_both = ([None, None], [true, true]);
            assert_eq!(compared_with(text, creating[0]), of_both, "{text}");
        }
    }

    /// Regression: of `insert … returning` against the same `insert`, "different results: … returned 1 row and … 0".
    #[test]
    fn a_statement_that_writes_returns_rows_only_if_it_says_so() {
        for (text, keeps) in [
            ("INSERT into t values (1)", true),
            ("insert into t values ('returning')", true),
            ("/* a */ update t set a = 1 RETURNING a", false),
            ("delete from t", true),
            ("with x as (delete from t returning a) table x", false),
            ("select 1", false),
        ] {
            assert_eq!(keeps_rows(text), keeps, "{text}");
        }
    }

    #[test]
    fn a_statement_without_a_plan_is_not_compared() {
        let without = StatementPlans::default();
        let found = compared(&[without], &[statement(0, "Seq Scan")]);
        assert_eq!(
            (found.same, found.not_compared, found.statements.len()),
            (0, 1, 0)
        );
    }
}
