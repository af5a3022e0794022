//! Conditions in a form that can be compared: without constants, and as single clauses.
//!
//! `((t.k = 5) AND (t.info ~~ 'a%'::text))` has the clauses `t.k = ?` and `t.info ~~ ?`. The generic
//! plan's `(t.k = $1)` has the first of them too. Operands of a comparison are sorted, since the sides
//! of a join's condition follow the join's order.

use std::collections::BTreeMap;

use crate::lexeme::{Lexeme, LexemeKind, lexemes};
use crate::plan::QueryPlan;

/// One clause of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clause {
    /// Equal for clauses that differ in constants, casts of constants and order of operands.
    pub(crate) key: String,
    /// As EXPLAIN prints it.
    pub(crate) text: String,
}

/// Names in a plan's conditions that are not comparable as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NameMap {
    /// The names of `SubPlans` and `InitPlans`, `1` or since 19 `expr_1`, by their order in the plan.
    subplans: BTreeMap<String, usize>,
    /// The aliases of partitions, and the alias of their root.
    pub(crate) roots: BTreeMap<String, String>,
}

impl NameMap {
    pub(crate) fn new(plan: &QueryPlan, roots: BTreeMap<String, String>) -> Self {
        let mut subplans = BTreeMap::new();
        let names = plan
            .nodes
            .iter()
            .filter_map(|it| it.subplan_name.as_deref());
        for name in names.filter(|name| !name.starts_with("CTE ")) {
            if let Some(name) = name.split_whitespace().nth(1) {
                let next = subplans.len() + 1;
                subplans.entry(name.to_owned()).or_insert(next);
            }
        }
        Self { subplans, roots }
    }
}

/// A lexeme or a constant, in the form for comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConditionPiece {
    text: String,
    is_word: bool,
    start: usize,
    end: usize,
}

/// An expression for comparison only.
pub(crate) fn normalized(expression: &str, names: &NameMap) -> String {
    let pieces = pieces(expression, names);
    join(without_parentheses(&pieces))
}

/// The clauses of a condition.
pub(crate) fn clauses(condition: &str, names: &NameMap) -> Vec<Clause> {
    let pieces = pieces(condition, names);
    let mut found = Vec::new();
    split(&pieces, condition, &mut found);
    found
}

fn split(pieces: &[ConditionPiece], source: &str, found: &mut Vec<Clause>) {
    let inner = without_parentheses(pieces);
    let ands = at_top(inner, |it| it.text == "AND");
    if ands.is_empty() {
        if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
            found.push(Clause {
                key: key(inner),
                text: source[first.start..last.end].to_owned(),
            });
        }
        return;
    }
    let mut from = 0;
    for end in ands.into_iter().chain([inner.len()]) {
        split(&inner[from..end], source, found);
        from = end + 1;
    }
}

/// A comparison with its operands sorted; anything else as it is.
fn key(pieces: &[ConditionPiece]) -> String {
    const MIRRORED: [(&str, &str); 6] = [
        ("=", "="),
        ("<>", "<>"),
        ("<", ">"),
        (">", "<"),
        ("<=", ">="),
        (">=", "<="),
    ];
    let is_operator = |it: &ConditionPiece| {
        let first = it.text.chars().next();
        !it.is_word && first.is_some_and(|it| "+-*/<>=~!@#%^&|`".contains(it))
    };
    let operators = at_top(pieces, is_operator);
    let [at] = operators[..] else {
        return join(pieces);
    };
    let mirrored = MIRRORED.iter().find(|(it, _)| *it == pieces[at].text);
    let (left, right) = (join(&pieces[..at]), join(&pieces[at + 1..]));
    match mirrored {
        Some((_, mirrored)) if right < left => format!("{right} {mirrored} {left}"),
        _ => join(pieces),
    }
}

fn join(pieces: &[ConditionPiece]) -> String {
    let texts: Vec<&str> = pieces.iter().map(|it| it.text.as_str()).collect();
    texts.join(" ")
}

/// The positions outside of parentheses and brackets.
fn at_top(pieces: &[ConditionPiece], is_wanted: impl Fn(&ConditionPiece) -> bool) -> Vec<usize> {
    let mut depth = 0;
    let mut found = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        match piece.text.as_str() {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            _ if depth == 0 && is_wanted(piece) => found.push(at),
            _ => {}
        }
    }
    found
}

/// Removes parentheses around the whole.
fn without_parentheses(mut pieces: &[ConditionPiece]) -> &[ConditionPiece] {
    while let [first, inner @ .., last] = pieces
        && first.text == "("
        && last.text == ")"
    {
        let mut depth = 0;
        let closes_early = inner.iter().any(|it| {
            match it.text.as_str() {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            depth < 0
        });
        if closes_early {
            break;
        }
        pieces = inner;
    }
    pieces
}

fn pieces(expression: &str, names: &NameMap) -> Vec<ConditionPiece> {
    let Some(all) = lexemes(expression) else {
        // Not an expression: a function call of an extension, for instance.
        let text = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        return vec![ConditionPiece {
            text,
            is_word: false,
            start: 0,
            end: expression.len(),
        }];
    };
    let mut found: Vec<ConditionPiece> = Vec::with_capacity(all.len());
    let mut at = 0;
    while at < all.len() {
        let (text, next) = piece(&all, at, names);
        let is_word = text != "?" && matches!(all[at].kind, LexemeKind::Word);
        found.push(ConditionPiece {
            text,
            is_word,
            start: all[at].start,
            end: all[next - 1].end(),
        });
        at = next;
        if reduce(&mut found) {
            at = after_casts(&all, at);
            if let Some(last) = found.last_mut() {
                last.end = all[at - 1].end();
            }
        }
    }
    found
}

/// The text of the piece at a position, and the position after it.
fn piece(all: &[Lexeme<'_>], at: usize, names: &NameMap) -> (String, usize) {
    let it = &all[at];
    let text_at = |at: usize| all.get(at).map_or("", |it| it.text);
    let constant = || "?".to_owned();
    match it.kind {
        LexemeKind::Text | LexemeKind::Number | LexemeKind::Parameter => {
            (constant(), after_casts(all, at + 1))
        }
        LexemeKind::Word if it.text == "NULL" && text_at(at + 1) == "::" => {
            (constant(), after_casts(all, at + 1))
        }
        // `(InitPlan 1).col1` is what `$0` was before 17.
        LexemeKind::Symbol
            if it.text == "("
                && text_at(at + 1) == "InitPlan"
                && text_at(at + 3) == ")"
                && text_at(at + 4) == "." =>
        {
            (constant(), after_casts(all, (at + 6).min(all.len())))
        }
        // Since 17, the subplan of EXISTS, ARRAY, IN and ANY is printed with its operator.
        LexemeKind::Word
            if matches!(it.text, "EXISTS" | "ARRAY")
                && text_at(at + 1) == "("
                && text_at(at + 2) == "SubPlan" =>
        {
            ("(".to_owned(), at + 2)
        }
        LexemeKind::Word if matches!(it.text, "ANY" | "ALL") => match subplan_within(all, at + 1) {
            Some((subplan, is_hashed, end)) => {
                let (text, _) = piece(all, subplan, names);
                let hashed = if is_hashed { "hashed " } else { "" };
                (format!("{hashed}{text}"), end)
            }
            None => (it.text.to_owned(), at + 1),
        },
        LexemeKind::Word if it.text == "hashed" && text_at(at + 1) == "SubPlan" => {
            let (text, end) = piece(all, at + 1, names);
            (format!("hashed {text}"), end)
        }
        LexemeKind::Word if matches!(it.text, "SubPlan" | "InitPlan") => {
            match names.subplans.get(text_at(at + 1)) {
                Some(number) => (format!("SubPlan {number}"), at + 2),
                None if all
                    .get(at + 1)
                    .is_some_and(|it| it.kind == LexemeKind::Number) =>
                {
                    (format!("{} ?", it.text), at + 2)
                }
                None => (it.text.to_owned(), at + 1),
            }
        }
        LexemeKind::Word | LexemeKind::QuotedName if text_at(at + 1) == "." => {
            let name = without_quotes(it.text);
            (names.roots.get(&name).unwrap_or(&name).clone(), at + 1)
        }
        _ => (it.text.to_owned(), at + 1),
    }
}

/// A name as a plan has it outside of expressions.
fn without_quotes(name: &str) -> String {
    match name.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

/// In parentheses that begin at a position: the position of `SubPlan`, whether it is hashed, and the position after the
/// parentheses. `None` if there is none.
fn subplan_within(all: &[Lexeme<'_>], open: usize) -> Option<(usize, bool, usize)> {
    let text_at = |at: usize| all.get(at).map_or("", |it| it.text);
    if text_at(open) != "(" {
        return None;
    }
    let mut depth = 0;
    let mut subplan = None;
    for at in open..all.len() {
        match text_at(at) {
            "(" => depth += 1,
            ")" if depth == 1 => {
                let found: usize = subplan?;
                return Some((found, text_at(found - 1) == "hashed", at + 1));
            }
            ")" => depth -= 1,
            "SubPlan" => subplan = Some(at),
            _ => {}
        }
    }
    None
}

/// Operators that compute a value from values. With constants only, the planner has computed it.
const COMPUTING: [&str; 7] = ["+", "-", "*", "/", "%", "^", "||"];

/// How many pieces before the last one, a parenthesis, are parameters, constants and operators on them.
fn computed(found: &[ConditionPiece]) -> usize {
    let inner = found.iter().rev().skip(1);
    let is_inner = |it: &&ConditionPiece| it.text == "?" || COMPUTING.contains(&it.text.as_str());
    inner.take_while(is_inner).count()
}

/// Replaces `(?)`, `(? + ?)` and `ARRAY[?, ?]` at the end by `?`, and returns whether it did.
fn reduce(found: &mut Vec<ConditionPiece>) -> bool {
    let length = found.len();
    let text = |back: usize| {
        length
            .checked_sub(back)
            .map_or("", |at| found[at].text.as_str())
    };
    let open = if text(1) == ")" && text(2) == "?" {
        let inner = computed(found);
        // Not the parentheses of a call.
        let is_call =
            length >= inner + 3 && (found[length - inner - 3].is_word || text(inner + 3) == "]");
        (text(inner + 2) == "(" && !is_call).then(|| length - inner - 2)
    } else if text(1) == "]" {
        let inner = found[..length - 1].iter().rev();
        let inner = inner
            .take_while(|it| matches!(it.text.as_str(), "?" | ","))
            .count();
        (text(inner + 2) == "[" && text(inner + 3) == "ARRAY").then(|| length - inner - 3)
    } else {
        None
    };
    let Some(open) = open else {
        return false;
    };
    found.truncate(open + 1);
    "?".clone_into(&mut found[open].text);
    found[open].is_word = false;
    true
}

/// The position after `::type` once or several times.
fn after_casts(all: &[Lexeme<'_>], mut at: usize) -> usize {
    while all.get(at).is_some_and(|it| it.text == "::") {
        at = after_type(all, at + 1);
    }
    at
}

/// The position after the name of a type, as `format_type_extended` in
/// `src/backend/utils/adt/format_type.c` prints it.
fn after_type(all: &[Lexeme<'_>], mut at: usize) -> usize {
    let text = |at: usize| all.get(at).map_or("", |it| it.text);
    let is_name = |at: usize| {
        let kind = all.get(at).map(|it| it.kind);
        matches!(kind, Some(LexemeKind::Word | LexemeKind::QuotedName))
    };
    if !is_name(at) {
        return at;
    }
    let first = text(at);
    at += 1;
    while text(at) == "." && is_name(at + 1) {
        at += 2;
    }
    match (first, text(at)) {
        ("double", "precision") | ("character" | "bit", "varying") => at += 1,
        ("interval", _) => {
            let units = ["year", "month", "day", "hour", "minute", "second", "to"];
            while units.contains(&text(at)) {
                at += 1;
            }
        }
        _ => {}
    }
    if text(at) == "(" {
        let inner = all[at + 1..].iter();
        let inner = inner.take_while(|it| it.kind == LexemeKind::Number || it.text == ",");
        let close = at + 1 + inner.count();
        if close > at + 1 && text(close) == ")" {
            at = close + 1;
        }
    }
    if matches!(text(at), "with" | "without") && text(at + 1) == "time" && text(at + 2) == "zone" {
        at += 3;
    }
    while text(at) == "[" && text(at + 1) == "]" {
        at += 2;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(condition: &str) -> Vec<String> {
        let found = clauses(condition, &NameMap::default());
        found.into_iter().map(|it| it.key).collect()
    }

    #[test]
    fn constants_and_parameters_are_equal() {
        for equal in [
            ["(t.id = 5)", "(t.id = $1)"],
            ["(t.info = 'a'::text)", "(t.info = $2)"],
            ["((t.v)::text = 'a'::text)", "((t.v)::text = ($1)::text)"],
            [
                "(t.k = ANY ('{5,6}'::integer[]))",
                "(t.k = ANY (ARRAY[$1, $2]))",
            ],
            [
                "(t.at > '2020-01-01 00:00:00'::timestamp(3) without time zone)",
                "(t.at > $1)",
            ],
            ["(t.c = 'x'::character varying(10)[])", "(t.c = $1)"],
            ["(t.x < '-1.5'::double precision)", "(t.x < (2)::numeric)"],
            ["(t.k > $0)", "(t.k > (InitPlan 1).col1)"],
            ["(t.b = NULL::\"char\")", "(t.b = 'x'::pg_catalog.\"char\")"],
            // Regression: 17 prints the operator of a subplan, which looked like another condition.
            [
                "(NOT (hashed SubPlan 1))",
                "(NOT (ANY (t.a = (hashed SubPlan 1).col1)))",
            ],
            ["(SubPlan 1)", "EXISTS(SubPlan 1)"],
            ["(t.a = (SubPlan 1))", "(t.a = ARRAY(SubPlan 1))"],
            ["(s.id = t.id)", "(t.id = s.id)"],
            // Regression: the generic plan of `id between :a and :a + 9` seemed to have other conditions.
            ["(t.id <= 12)", "(t.id <= ($2 + 9))"],
            ["(t.id <= 12)", "(t.id <= (($2)::bigint * ($3 - 1)))"],
            ["(t.a = 'xy'::text)", "(t.a = ($1 || 'y'::text))"],
            [
                "(t.id = ANY ('{1,2}'::integer[]))",
                "(t.id = ANY (ARRAY[$1, ($1 + 1)]))",
            ],
            ["(s.id < t.id)", "(t.id > s.id)"],
        ] {
            assert_eq!(keys(equal[0]), keys(equal[1]), "{equal:?}");
        }
        for different in [
            ["(t.id = 5)", "(t.id > 5)"],
            ["(t.b IS NULL)", "(t.b IS NOT NULL)"],
            ["(lower(t.a) = 'x')", "(t.a = 'x')"],
            ["(f(1) = t.a)", "(t.a = 1)"],
            ["(t.a <= (t.b + 9))", "(t.a <= 12)"],
            ["(t.a <= f($1 + 9))", "(t.a <= 12)"],
            ["($1 = 5)", "($1 > 5)"],
        ] {
            assert_ne!(keys(different[0]), keys(different[1]), "{different:?}");
        }
    }

    #[test]
    fn a_condition_is_split_at_every_and_outside_of_others() {
        let text = "(((t.a = 1) AND (t.b = 'x AND y'::text)) AND ((t.c = 2) OR ((t.d = 3) AND (t.e = 4))))";
        let found = clauses(text, &NameMap::default());
        let texts: Vec<_> = found.iter().map(|it| it.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "(t.a = 1)",
                "(t.b = 'x AND y'::text)",
                "((t.c = 2) OR ((t.d = 3) AND (t.e = 4)))"
            ]
        );
        assert_eq!(found[0].key, "? = t . a".to_owned());
    }

    #[test]
    fn subplans_are_numbered_by_order_and_partitions_named_after_their_root() {
        let plan = QueryPlan::parse(
            r#"[{"Plan": {"Node Type": "A", "Plans": [{"Subplan Name": "CTE x"},
                {"Subplan Name": "InitPlan 4 (returns $1)"}, {"Subplan Name": "SubPlan 7"}]}}]"#,
        )
        .unwrap();
        let roots = BTreeMap::from([("p_3".to_owned(), "p".to_owned())]);
        let names = NameMap::new(&plan, roots);
        assert_eq!(
            normalized("(NOT (hashed SubPlan 7))", &names),
            "NOT ( hashed SubPlan 2 )"
        );
        assert_eq!(normalized("(p_3.id = 1)", &names), "p . id = ?");
    }

    /// Regression: a plan through a partition of `"T u"` removed and added the condition that both plans have.
    #[test]
    fn a_condition_on_a_partition_with_a_quoted_name_is_that_on_its_root() {
        let plan = QueryPlan::parse(r#"[{"Plan": {"Node Type": "A"}}]"#).unwrap();
        let root = "T \"u".to_owned();
        let through = NameMap::new(&plan, BTreeMap::from([("T \"u_1".to_owned(), root)]));
        let direct = NameMap::new(&plan, BTreeMap::new());
        let expected = "T \"u . k <> ?";
        assert_eq!(
            normalized(r#"("T ""u_1".k <> 'zz'::text)"#, &through),
            expected
        );
        assert_eq!(
            normalized(r#"("T ""u".k <> 'zz'::text)"#, &direct),
            expected
        );
    }

    #[test]
    fn text_that_is_not_an_expression_is_compared_as_it_is() {
        assert_eq!(keys("it's   odd"), ["it's odd"]);
        assert!(keys("").is_empty());
        assert_eq!(keys("((a"), ["( ( a"]);
    }
}
