//! The question of a gate, which heads its report.

use pgassay_report::gate::GateLimit;

use crate::command::compare::question::which_is_faster;

/// What a gate with this limit asks about variants, the baseline first. With `stepwise`, each is compared with the one
/// before it.
pub fn asked_of(limit: GateLimit, stepwise: bool, names: &[&str]) -> String {
    let [baseline, rest @ ..] = names else {
        return which_is_faster(names);
    };
    if rest.is_empty() {
        return which_is_faster(names);
    }
    let baseline = if stepwise && rest.len() > 1 {
        "the one before it".to_owned()
    } else {
        format!("\"{baseline}\"")
    };
    let asked = if let [only] = rest {
        format!("\"{only}\"")
    } else {
        format!("any of \"{}\"", rest.join("\", \""))
    };
    match limit {
        GateLimit::Slower(percent) if percent < 0.0 => {
            format!("Is {asked} not faster than {baseline} by {}%?", -percent)
        }
        GateLimit::Slower(percent) => {
            format!("Is {asked} slower than {baseline} by more than {percent}%?")
        }
        GateLimit::Instructions(percent) if percent < 0.0 => {
            let fewer = -percent;
            format!("Does {asked} not execute {fewer}% fewer instructions than {baseline}?")
        }
        GateLimit::Instructions(percent) => {
            format!("Does {asked} execute over {percent}% more instructions than {baseline}?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a gate that fails if "b" is slower asked: Is "b" faster than "a"?
    #[test]
    fn the_title_of_a_gate_asks_whether_the_variant_is_slower() {
        let slower = GateLimit::Slower(20.0);
        for (limit, names, question) in [
            (
                slower,
                &["a", "b"][..],
                "Is \"b\" slower than \"a\" by more than 20%?",
            ),
            (
                slower,
                &["a", "b", "c"],
                "Is any of \"b\", \"c\" slower than \"a\" by more than 20%?",
            ),
            (
                GateLimit::Slower(-3.0),
                &["a", "b"],
                "Is \"b\" not faster than \"a\" by 3%?",
            ),
            (
                GateLimit::Instructions(1.5),
                &["a", "b"],
                "Does \"b\" execute over 1.5% more instructions than \"a\"?",
            ),
            (slower, &["a"], "What does \"a\" cost?"),
        ] {
            assert_eq!(asked_of(limit, false, names), question);
        }
        // Regression: each was compared with the one before it, and the title named the first.
        assert_eq!(
            asked_of(slower, true, &["a", "b", "c"]),
            "Is any of \"b\", \"c\" slower than the one before it by more than 20%?"
        );
        let two = asked_of(slower, true, &["a", "b"]);
        assert_eq!(two, asked_of(slower, false, &["a", "b"]));
    }
}
