//! Conditions on a column that a B-tree index on the column itself cannot serve: the column is cast, is the argument
//! of a function or a part of another expression, is matched with a pattern or searched for an element or a word, or a
//! key of it is compared.

use pgassay_record::activity::{IndexActivity, TableActivity};

use super::detection::Detection;
use super::index_builds::{create_on, risk_of_build, with_build};
use super::live_view::LiveView;
use super::names;
use super::sql_expressions::{computed_from, is_value, sides};
use super::sql_text;
use pgassay_script::statement_tokens::{StatementToken, TokenKind};

/// Comparisons that an index could serve.
const COMPARISONS: [&str; 7] = ["=", "<", ">", "<=", ">=", "in", "between"];
/// Operators of `jsonb`, arrays, ranges and geometric types, which no B-tree serves.
const CONTAINS: [&str; 6] = ["@>", "&&", "?", "?|", "?&", MATCHES];
/// A text contains the words of a query.
const MATCHES: &str = "@@";
/// Operators that take a key or a path of a JSON value.
const KEYS: [&str; 4] = ["->", "->>", "#>", "#>>"];
/// What stands for an expression in [`IndexActivity::columns`].
const EXPRESSION: &str = "expression";
/// Words before a parenthesis that are no functions.
const NOT_FUNCTIONS: [&str; 9] = [
    "not", "exists", "any", "all", "some", "row", "array", "and", "or",
];

/// A condition that no index on its column serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnservedCondition {
    pub column: String,
    /// It keeps few rows, whatever the table's: it compares for equality, or searches for words.
    pub is_equality: bool,
    kind: UnservedKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum UnservedKind {
    /// `column::type = …`.
    Cast,
    /// `function(column) = …`.
    Function(String),
    /// `column like …`, or `ilike`.
    Pattern(String),
    /// `column @> …`.
    Contains(String),
    /// `column ->> 'key' = …`, with the last of these operators.
    Key(String),
    /// `… = any (column)`.
    Element,
    /// `to_tsvector(…, column) @@ …`.
    Words,
    /// Any other expression of the column.
    Expression,
}

/// The first such condition of a statement on a single table, whose conditions are joined by AND.
pub(super) fn unserved(tokens: &[StatementToken]) -> Option<UnservedCondition> {
    let (conditions, tables) = sql_text::conditions(tokens)?;
    conditions
        .into_iter()
        .find_map(|it| of_condition(without_parentheses(it), &tables))
}

fn without_parentheses(condition: &[StatementToken]) -> &[StatementToken] {
    match condition {
        [open, inner @ .., close]
            if open.is("(") && close.is(")") && !inner.iter().any(|it| it.is_any(&["(", ")"])) =>
        {
            inner
        }
        all => all,
    }
}

fn of_condition(condition: &[StatementToken], tables: &[&str]) -> Option<UnservedCondition> {
    if condition.iter().any(|it| it.is("or")) {
        return None;
    }
    of_simple(condition, tables).or_else(|| of_expression(condition, tables))
}

/// The column itself, cast, or as the only argument of a function.
fn of_simple(condition: &[StatementToken], tables: &[&str]) -> Option<UnservedCondition> {
    let (kind, column, rest) = of_function(condition, tables)
        .or_else(|| of_key(condition, tables))
        .or_else(|| of_column(condition, tables))?;
    let (operator, value) = rest.split_first()?;
    let is_own = matches!(kind, UnservedKind::Pattern(_) | UnservedKind::Contains(_));
    let is_compared = operator.is_any(&COMPARISONS) || is_own;
    (is_compared && is_value(value) && names::is_decoded(&column)).then(|| UnservedCondition {
        column,
        is_equality: operator.is_any(&["=", "in"]),
        kind,
    })
}

/// An expression of one column on one side, and a value on the other.
fn of_expression(condition: &[StatementToken], tables: &[&str]) -> Option<UnservedCondition> {
    let (left, operator, right) = sides(condition, &[&COMPARISONS[..], &[MATCHES]].concat())?;
    let expression = match (is_value(left), is_value(right)) {
        (false, true) => left,
        (true, false) => right,
        _ => return None,
    };
    let column = computed_from(expression, tables).filter(|it| names::is_decoded(it))?;
    let is_call_of = |name: &str| expression.first().is_some_and(|it| it.is(name));
    let kind = if operator.is(MATCHES) {
        UnservedKind::Words
    } else if is_call_of("any") {
        UnservedKind::Element
    } else {
        UnservedKind::Expression
    };
    // A remainder, or a field of a time, has few values.
    let has_few_values = is_call_of("extract") || expression.iter().any(|it| it.is("%"));
    Some(UnservedCondition {
        column,
        is_equality: operator.is_any(&["=", "in", MATCHES]) && !has_few_values,
        kind,
    })
}

type Compared<'a> = (UnservedKind, String, &'a [StatementToken]);

/// `function(column)`, or `cast(column as type)`, and what follows it.
fn of_function<'a>(condition: &'a [StatementToken], tables: &[&str]) -> Option<Compared<'a>> {
    let [function, open, inner @ ..] = condition else {
        return None;
    };
    let is_call =
        function.kind == TokenKind::Word && open.is("(") && !function.is_any(&NOT_FUNCTIONS);
    if !is_call {
        return None;
    }
    let (column, rest) = sql_text::column(inner, tables)?;
    let (next, rest) = rest.split_first()?;
    if function.is("cast") && next.is("as") {
        let end = rest.iter().position(|it| it.is(")"))?;
        let is_plain = rest[..end].iter().all(StatementToken::is_name);
        return is_plain.then(|| (UnservedKind::Cast, column, &rest[end + 1..]));
    }
    next.is(")")
        .then(|| (UnservedKind::Function(function.text.clone()), column, rest))
}

/// `column ->> 'key'`, maybe in parentheses and cast, and what follows it.
fn of_key<'a>(condition: &'a [StatementToken], tables: &[&str]) -> Option<Compared<'a>> {
    let (is_open, inner) = match condition {
        [open, inner @ ..] if open.is("(") => (true, inner),
        all => (false, all),
    };
    let (column, mut rest) = sql_text::column(inner, tables)?;
    let mut taken = None;
    while let [operator, key, after @ ..] = rest {
        if !operator.is_any(&KEYS) || key.kind != TokenKind::Constant {
            break;
        }
        (taken, rest) = (Some(operator), after);
    }
    let kind = UnservedKind::Key(taken?.text.clone());
    if is_open {
        let (close, after) = rest.split_first()?;
        rest = close.is(")").then_some(after)?;
    }
    let after = match rest {
        [cast, to, after @ ..] if cast.is("::") && to.is_name() => after,
        all => all,
    };
    Some((kind, column, after))
}

/// `column::type`, or `column like` and other operators, and what follows; of the latter with the operator.
fn of_column<'a>(condition: &'a [StatementToken], tables: &[&str]) -> Option<Compared<'a>> {
    let (column, rest) = sql_text::column(condition, tables)?;
    match rest {
        [operator, ..] if operator.is_any(&["like", "ilike"]) => {
            Some((UnservedKind::Pattern(operator.text.clone()), column, rest))
        }
        [operator, ..] if operator.is_any(&CONTAINS) => {
            Some((UnservedKind::Contains(operator.text.clone()), column, rest))
        }
        [cast, kind, rest @ ..] if cast.is("::") && kind.is_name() => {
            Some((UnservedKind::Cast, column, rest))
        }
        _ => None,
    }
}

impl UnservedCondition {
    /// Whether an index may serve it: one on an expression, whose text is not known, or one of trigrams.
    pub fn may_be_served_by(&self, index: &IndexActivity) -> bool {
        let names = |column: &str| index.columns.iter().any(|it| it == column);
        match self.kind {
            UnservedKind::Pattern(_) => {
                matches!(&*index.method, "gin" | "gist")
                    && (names(&self.column) || names(EXPRESSION))
            }
            UnservedKind::Cast | UnservedKind::Function(_) => {
                index.columns.first().is_some_and(|it| it == EXPRESSION)
            }
            UnservedKind::Contains(_) => {
                !matches!(&*index.method, "btree" | "hash" | "brin")
                    && (names(&self.column) || names(EXPRESSION))
            }
            UnservedKind::Key(_) | UnservedKind::Words | UnservedKind::Expression => {
                names(EXPRESSION)
            }
            UnservedKind::Element => false,
        }
    }

    /// Says that an index cannot serve it, and what does. `is_indexed`: an index begins with the column.
    pub fn with_fix(
        &self,
        view: &LiveView<'_>,
        detection: Detection,
        table: &TableActivity,
        is_indexed: bool,
    ) -> Detection {
        let column = names::identifier(&self.column);
        let detection = detection.with(is_indexed.then_some(()), |it, ()| {
            it.state(format!(
                "an index begins with {column}, but cannot serve this condition"
            ))
        });
        if self.kind == UnservedKind::Cast {
            return without_cast(view, detection, table, &column, is_indexed);
        }
        let (words, definition) = self.fix(&column, &create_on(view, table));
        let words = format!("{words} Check with EXPLAIN that the statement uses it.");
        let detection = with_build(view, detection, table, &words, definition);
        if self.kind == UnservedKind::Element {
            let risk = risk_of_build(view, table);
            return detection.risk(format!("It requires a change of the statement. {risk}"));
        }
        detection
    }

    /// What to do, in words, and what the index is on, if the normalized text shows it.
    fn fix(&self, column: &str, create: &str) -> (String, Option<String>) {
        match &self.kind {
            UnservedKind::Function(function) => (
                format!(
                    "Create an index on the expression {function}({column}), if the function is immutable, or compare \
                     {column} without the function. An index on {column} serves conditions on {column} itself, not \
                     on a function of it."
                ),
                Some(format!("({function}({column}))")),
            ),
            UnservedKind::Pattern(operator) => (
                if operator == "ilike" {
                    format!(
                        "Create an index of trigrams with the extension pg_trgm (CREATE EXTENSION pg_trgm). A B-tree \
                         serves no pattern that ignores case: lower({column}) like lower(…) could use one on \
                         lower({column}), if the pattern begins with constant letters."
                    )
                } else {
                    format!(
                        "If patterns begin with %, create an index of trigrams with the extension pg_trgm (CREATE \
                         EXTENSION pg_trgm). An index on {column} serves LIKE only if the pattern begins with \
                         constant letters, and if it has the operator class text_pattern_ops or the collation C."
                    )
                },
                Some(format!("using gin ({column} gin_trgm_ops)")),
            ),
            UnservedKind::Contains(operator) => (
                format!(
                    "Create an index that serves {operator}: of the kind GIN if {column} is jsonb, an array or a \
                     tsvector, of the kind GiST if it is a range or a geometric type. A B-tree does not serve it."
                ),
                Some(format!("using gin ({column})")),
            ),
            UnservedKind::Key(operator) => (
                format!(
                    "Create an index on the expression as the statement has it, with its keys, which the normalized \
                     text does not show: {create} (({column} {operator} 'key')). If the statement casts the \
                     expression, index the cast. A GIN index on {column} serves {column} @> '…', but not {operator}."
                ),
                None,
            ),
            UnservedKind::Element => (
                format!(
                    "Write the condition as {column} @> array[…], and create an index of the kind GIN on {column} if \
                     there is none. No index serves a search for value = ANY ({column})."
                ),
                None,
            ),
            UnservedKind::Words => (
                format!(
                    "Create an index of the kind GIN on the expression as the statement has it, with the name of the \
                     text search configuration, which the normalized text does not show: {create} using gin \
                     (to_tsvector('english', {column}))."
                ),
                None,
            ),
            UnservedKind::Cast | UnservedKind::Expression => (
                format!(
                    "Move the computation to the other side of the comparison, so that {column} stands alone (instead \
                     of date_trunc: {column} >= the beginning and {column} < the end of the period), or create an \
                     index on the expression as the statement has it, if its functions are immutable. The normalized \
                     text does not show its constants. An index on {column} serves conditions on {column} itself, not \
                     on an expression of it."
                ),
                None,
            ),
        }
    }
}

/// Suggests to compare the column itself.
fn without_cast(
    view: &LiveView<'_>,
    detection: Detection,
    table: &TableActivity,
    column: &str,
    is_indexed: bool,
) -> Detection {
    let first = if is_indexed {
        format!("Compare {column}")
    } else {
        format!("Create an index on {column}, and compare it")
    };
    let words = format!(
        "{first} without the cast: convert the value to the type of the column instead, and compare a time with the \
         beginning and the end of a day instead of casting it to a date. An index on {column} serves conditions on \
         {column} itself, and not on its cast to another kind of type. If the statement cannot be changed, create an \
         index on the expression, if the cast is immutable."
    );
    if is_indexed {
        return detection
            .fix(words)
            .risk("It requires a change of the application.");
    }
    with_build(view, detection, table, &words, Some(format!("({column})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_script::statement_tokens::tokens;

    fn found(text: &str) -> Option<(UnservedKind, String)> {
        unserved(&tokens(text)).map(|it| (it.kind, it.column))
    }

    #[test]
    fn casts_functions_and_patterns_are_conditions_that_no_index_on_the_column_serves() {
        let lower = || UnservedKind::Function("lower".to_owned());
        for (text, kind, column) in [
            (
                "select * from t where id::text = $1",
                UnservedKind::Cast,
                "id",
            ),
            (
                "select * from t x where x.id::text in ($1, $2) limit 1",
                UnservedKind::Cast,
                "id",
            ),
            (
                "select * from t where cast(at as date) = $1",
                UnservedKind::Cast,
                "at",
            ),
            (
                "select * from t where lower(name) = $1 and b is null",
                lower(),
                "name",
            ),
            (
                "delete from t where upper(t.b) <> $1 and lower(t.name) = ($1)",
                lower(),
                "name",
            ),
            (
                "select * from t where name like $1",
                UnservedKind::Pattern("like".to_owned()),
                "name",
            ),
            (
                "select * from t where \"A\" ilike $1",
                UnservedKind::Pattern("ilike".to_owned()),
                "A",
            ),
        ] {
            assert_eq!(found(text), Some((kind, column.to_owned())), "{text}");
        }
    }

    #[test]
    fn elements_and_keys_are_conditions_that_no_b_tree_on_the_column_serves() {
        let key = |operator: &str| UnservedKind::Key(operator.to_owned());
        let contains = |operator: &str| UnservedKind::Contains(operator.to_owned());
        for (text, kind) in [
            ("select * from t where data @> $1", contains("@>")),
            ("select * from t where t.data @> $1::jsonb", contains("@>")),
            ("select * from t where data ? $1 and a = $2", contains("?")),
            (
                "select * from t where data && array[$1, $2]",
                contains("&&"),
            ),
            ("select * from t where data->>$1 = $2", key("->>")),
            ("select * from t where data->$1->>$2 = $3", key("->>")),
            ("select * from t where (data->>$1)::int > $2", key("->>")),
            ("select * from t where (data #>> $1) = $2", key("#>>")),
        ] {
            assert_eq!(found(text), Some((kind, "data".to_owned())), "{text}");
        }
        for text in [
            "select * from t where data <@ $1",
            "select * from t where data->>$1 is null",
            "select * from t where data->>other = $1",
            "select * from t where data->>$1 = other",
            "select * from t where (data->>$1 = $2 or a = $3)",
            "select * from t where (data->>$1",
            "select * from t where data->>",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    /// Regression: a function of several arguments, or of the value too, hid the condition: `lower(a) = lower($1)`,
    /// `date_trunc($1, a) = $2`.
    #[test]
    fn expressions_of_a_column_are_conditions_that_no_index_on_it_serves() {
        let lower = UnservedKind::Function("lower".to_owned());
        for (condition, kind) in [
            ("lower(a) = lower($1)", lower.clone()),
            (
                "date_trunc($1, a) = date_trunc($2, now() - $3 * interval $4)",
                UnservedKind::Expression,
            ),
            ("coalesce(t.a, $1) in ($2, $3)", UnservedKind::Expression),
            ("$1 > a + interval $2", UnservedKind::Expression),
            ("$1 = any (a)", UnservedKind::Element),
            (
                "to_tsvector($1, a) @@ plainto_tsquery($2)",
                UnservedKind::Words,
            ),
            (
                "a @@ to_tsquery($1)",
                UnservedKind::Contains("@@".to_owned()),
            ),
        ] {
            let text = format!("select * from t where b is null and {condition} order by b");
            assert_eq!(found(&text), Some((kind, "a".to_owned())), "{text}");
        }
        let is_equality = |condition: &str| {
            unserved(&tokens(&format!("select * from t where {condition}")))
                .map(|it| it.is_equality)
        };
        assert_eq!(is_equality("date_trunc($1, a) = $2"), Some(true));
        assert_eq!(is_equality("a % $1 = $2"), Some(false));
        assert_eq!(is_equality("extract(year from a) = $1"), Some(false));
        assert_eq!(is_equality("a + $1 < $2"), Some(false));
    }

    #[test]
    fn other_conditions_are_not() {
        for text in [
            "select * from t where id = $1",
            "select * from t where id = $1::int",
            "select * from t where id::text = $1 or a = $2",
            "select * from t where (id::text = $1 or a = $2)",
            "select * from t where id::text = other",
            "select * from t where name not like $1",
            "select * from t where not (a = $1)",
            "select * from t where exists (select 1)",
            "select * from t where coalesce(a, b) = $1",
            "select * from t where id::text is null",
            "select * from t join u on t.i = u.i where t.id::text = $1",
            "select * from t where lower(name) <> $1",
            "select * from t where",
            "select * from t where id::",
            "select * from t where lower(",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
