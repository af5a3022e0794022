//! The names of variants whose statements are on the command line.

use std::collections::BTreeSet;

/// Characters of a statement that are shown as a variant's name.
const NAME_CHARS: usize = 40;

/// Numbers names that are equal.
pub fn make_distinct<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut seen = BTreeSet::new();
    for name in names {
        let first = name.clone();
        let mut number = 1;
        while !seen.insert(name.clone()) {
            number += 1;
            *name = format!("{first} ({number})");
        }
    }
}

/// The names of statements. Variables that they set are part of them only if nothing else differs.
pub fn names_of(statements: &[String]) -> Vec<String> {
    let sql: Vec<String> = statements.iter().map(|it| without_variables(it)).collect();
    let distinct: BTreeSet<&str> = sql.iter().map(|it| it.trim()).collect();
    if distinct.len() == sql.len() && !distinct.contains("") {
        distinguished(&sql)
    } else {
        distinguished(statements)
    }
}

fn without_variables(script: &str) -> String {
    let lines = script
        .lines()
        .filter(|it| !it.trim_start().starts_with("\\set "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of statements, or what follows the part in which long ones are equal.
fn distinguished(statements: &[String]) -> Vec<String> {
    let names: Vec<String> = statements.iter().map(|sql| short(sql)).collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    let is_cut = names.iter().any(|it| it.ends_with('…'));
    if distinct.len() == names.len() || !is_cut {
        return names;
    }
    let words: Vec<Vec<&str>> = statements
        .iter()
        .map(|sql| sql.split_whitespace().collect())
        .collect();
    let all_have = |at: usize| {
        let word = words[0].get(at);
        word.is_some() && words.iter().all(|other| other.get(at) == word)
    };
    let equal = (0..words[0].len()).take_while(|&at| all_have(at)).count();
    if words.iter().any(|words| words.len() == equal) {
        return names;
    }
    let rest = |words: &Vec<&str>| format!("… {}", words[equal..].join(" "));
    words.iter().map(|words| short(&rest(words))).collect()
}

/// A statement on one line, shortened.
pub fn short(sql: &str) -> String {
    let words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.trim_end_matches(';');
    if words.chars().count() <= NAME_CHARS {
        return words.to_owned();
    }
    let kept: String = words.chars().take(NAME_CHARS - 1).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a variant was called "\set k random(1, 10000) select two(:k)" in each sentence.
    #[test]
    fn a_statement_is_named_without_the_variables_that_it_sets() {
        let named = |texts: [&str; 2]| names_of(&texts.map(str::to_owned));
        assert_eq!(
            named(["\\set k 1\nselect f(:k)", " \\set k 1\nselect g(:k)"]),
            ["select f(:k)", "select g(:k)"]
        );
        assert_eq!(
            named(["\\set k 1\nselect :k", "\\set k 2\nselect :k"]),
            ["\\set k 1 select :k", "\\set k 2 select :k"]
        );
        // Regression: a script that never reaches its statement was called "select 1;".
        assert_eq!(
            named(["select 1", "\\if 1 > 2\nselect 1;\n\\endif"])[1],
            "\\if 1 > 2 select 1; \\endif"
        );
    }

    /// Regression: `select 1` and `select 1;` were called "… 1" and "… 1 (2)".
    #[test]
    fn only_long_statements_lose_what_they_have_in_common() {
        let named = |texts: [&str; 2]| names_of(&texts.map(str::to_owned));
        assert_eq!(named(["select 1", "select 1;"]), ["select 1", "select 1"]);
        let long = |end: &str| format!("select {} from t where a = {end}", "x, ".repeat(30));
        let (one, two) = (long("1"), long("2"));
        assert_eq!(named([&one, &two]), ["… 1", "… 2"]);
    }
}
