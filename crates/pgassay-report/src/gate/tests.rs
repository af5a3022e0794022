use super::*;

fn result(answer: GateAnswer, ratio: f64) -> GateResult {
    GateResult {
        variant: "new|build".to_owned(),
        baseline: "old".to_owned(),
        condition: "8 clients".to_owned(),
        compared: GatedComparison {
            condition: 0,
            variant: 1,
            answer,
            ratio: Some(ratio),
            interval: None,
            pairs: 6,
        },
    }
}

#[test]
fn one_regression_fails_and_one_doubt_is_no_pass() {
    use GateAnswer::{CannotTell, Pass, Regression};
    let of = |answers: &[GateAnswer]| {
        let all: Vec<GateResult> = answers.iter().map(|it| result(*it, 1.0)).collect();
        GateOutcome::of(&all)
    };
    assert_eq!(of(&[Pass, Pass]), GateOutcome::Pass);
    assert_eq!(of(&[Pass, CannotTell]), GateOutcome::CannotTell);
    assert_eq!(of(&[CannotTell, Regression, Pass]), GateOutcome::Regression);
    assert_eq!(of(&[]), GateOutcome::CannotTell);
}

#[test]
fn the_sentence_is_about_the_slowest_comparison() {
    let all = [
        result(GateAnswer::Pass, 1.0),
        result(GateAnswer::Regression, 0.9),
        result(GateAnswer::Regression, 0.8),
    ];
    let sentence = deciding_sentence(&all, 5.0);
    assert!(
        sentence.starts_with(
            "regression: new|build is slower than old by more than 5% with 8 clients: throughput ×0.800"
        ),
        "{sentence}"
    );
    assert!(
        sentence.ends_with("2 of 3 comparisons have this answer."),
        "{sentence}"
    );
}

#[test]
fn names_cannot_break_a_table_or_a_workflow_command() {
    let text = markdown(&[result(GateAnswer::Pass, 1.0)], "pass: a|b\n%");
    assert!(text.contains("| new\\|build |"), "{text}");
    assert!(text.contains("**pass: a\\|b %**"), "{text}");
    assert_eq!(
        annotation(GateOutcome::Regression, "slower by 6%\nsurely"),
        "::error title=pgassay gate::slower by 6%25%0Asurely"
    );
}
