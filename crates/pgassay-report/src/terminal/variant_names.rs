//! Names of variants in columns: statements are often longer than a column, and equal at the beginning.

use super::table::{cut, visible};

/// The names in at most `width` columns each. Where several would be cut to the same text, the beginning that
/// they have in common is left out instead.
pub(super) fn short_names(names: &[String], width: usize) -> Vec<String> {
    let names: Vec<String> = names.iter().map(|it| visible(it)).collect();
    names
        .iter()
        .map(|it| short_name(it, &names, width))
        .collect()
}

fn short_name(name: &str, names: &[String], width: usize) -> String {
    let short = cut(name, width);
    let alike = names
        .iter()
        .filter(|it| *it != name && cut(it, width) == short);
    let Some(common) = alike.map(|it| common_chars(name, it)).max() else {
        return short;
    };
    // Half of the width at most shows the end of the common part, from the beginning of a word if there is one.
    let shown = common.min(width / 2);
    let ending: Vec<char> = name.chars().skip(common - shown).collect();
    let space = ending[..shown].iter().position(|it| *it == ' ');
    let ending: String = ending[space.map_or(0, |it| it + 1)..].iter().collect();
    cut(&format!("…{ending}"), width)
}

/// The number of characters in which two texts agree at the beginning.
fn common_chars(one: &str, other: &str) -> usize {
    let both = one.chars().zip(other.chars());
    both.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two statements had the same name in ANSWER, FIGURES and LEDGER.
    #[test]
    fn statements_with_a_common_beginning_have_different_names() {
        let names = [
            "select * from t where a = 5",
            "select * from t where b = 1 and a = 7",
            "update t set b = 2",
            "select * from t where b = 1 and a = 8",
        ];
        let names = names.map(str::to_owned);
        let expected = [
            "…t where a = 5",
            "…and a = 7",
            "update t set b = 2",
            "…and a = 8",
        ];
        assert_eq!(short_names(&names, 20), expected);
        let endless = ["x".repeat(30) + "1", "x".repeat(30) + "2"];
        assert_eq!(short_names(&endless, 10), ["…xxxxx1", "…xxxxx2"]);
        let longer = ["select * from tables", "select * from tables limit 1"].map(str::to_owned);
        assert_eq!(short_names(&longer, 15), ["…tables", "…tables limit 1"]);
    }
}
