//! The names of variants whose statements are on the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::command::tables::file_of;

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

/// The names of setups: that of a file, or the SQL.
pub fn names_of_setups(setups: &[String]) -> Vec<String> {
    let file_name = |it: &String| {
        // The numbers of pipes, as in /dev/fd/63, are no names.
        let is_pipe = |file: &&Path| file.starts_with("/dev") || file.starts_with("/proc");
        let file = file_of(it).filter(|file| !is_pipe(file))?;
        Some(file.file_name()?.to_string_lossy().into_owned())
    };
    let files: Vec<String> = setups.iter().filter_map(file_name).collect();
    let has_one_name = |name: &String| files.iter().filter(|it| *it == name).count() == 1;
    let texts = setups.iter().map(|it| match file_name(it) {
        Some(name) if has_one_name(&name) => name,
        Some(_) => it.trim_start_matches("./").to_owned(),
        None => it.clone(),
    });
    distinguished(&texts.collect::<Vec<_>>())
}

/// The texts of statements, or what is different in long ones that begin in the same way.
fn distinguished(statements: &[String]) -> Vec<String> {
    let mut names: Vec<String> = statements.iter().map(|sql| short(sql)).collect();
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        alike.entry(name.clone()).or_default().push(at);
    }
    for (name, group) in alike {
        if group.len() > 1 && name.ends_with('…') {
            let texts: Vec<&str> = group.iter().map(|&at| statements[at].as_str()).collect();
            for (&at, name) in group.iter().zip(differences(&texts)) {
                names[at] = name;
            }
        }
    }
    names
}

/// What is different in texts, shortened; the beginning of each if one has nothing that others do not have.
fn differences(texts: &[&str]) -> Vec<String> {
    let all: Vec<Vec<&str>> = texts
        .iter()
        .map(|text| text.split_whitespace().collect())
        .collect();
    let shortest = all.iter().map(Vec::len).min().unwrap_or(0);
    let are_equal = |word: &dyn Fn(&[&str]) -> String| {
        let mut words = all.iter().map(|it| word(it));
        let first = words.next();
        words.all(|it| Some(it) == first)
    };
    let equal = (0..shortest)
        .take_while(|&at| are_equal(&|it| it[at].to_owned()))
        .count();
    if equal == shortest {
        return texts.iter().map(|it| short(it)).collect();
    }
    // Each keeps a word.
    let ending = (1..shortest - equal)
        .take_while(|&back| are_equal(&|it| it[it.len() - back].to_owned()))
        .count();
    let name = |words: &Vec<&str>| {
        let rest = format!("… {}", words[equal..].join(" "));
        if ending == 0 || short(&rest) == rest {
            return short(&rest);
        }
        short(&format!(
            "… {} …",
            words[equal..words.len() - ending].join(" ")
        ))
    };
    all.iter().map(name).collect()
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

    /// Regression: two setups that began alike had the same shortened name, the second with "(2)", and a file that of
    /// its path.
    #[test]
    fn setups_that_begin_alike_are_named_by_what_is_different() {
        let named = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&it| it.to_owned()).collect();
            names_of_setups(&texts)
        };
        let index = |method: &str, end: &str| {
            format!(
                "drop index if exists t_a_idx; create index t_a_idx on t using {method} (a){end}"
            )
        };
        let (hash, brin) = (index("hash", ""), index("brin", ";"));
        let both = ["… hash (a)", "… brin (a)"];
        assert_eq!(named(&[&hash, &brin]), both);
        assert_eq!(named(&[&hash, "create index on t (a)", &brin])[2], both[1]);
        let end = "; vacuum analyze t; select pg_prewarm('t'); checkpoint";
        let long = [index("hash", end), index("brin", end)];
        assert_eq!(named(&[&long[0], &long[1]]), ["… hash …", "… brin …"]);
        assert_eq!(
            named(&["./brin.sql", "/tmp/setups/of/a/long/name/hash.sql"]),
            ["brin.sql", "hash.sql"]
        );
        assert_eq!(named(&["a/s.sql", "./b/s.sql"]), ["a/s.sql", "b/s.sql"]);
        // Two pipes of a shell.
        let pipes = ["/dev/fd/63", "/dev/fd/62"];
        assert_eq!(named(&pipes), pipes);
    }
}
