//! Texts of sessions compared with those of `pg_stat_statements`, where no `query_id` connects them.
//!
//! A session shows the text that its client sent, `pg_stat_statements` the same text (from 10 on, of a message
//! with several statements, only this one's part) with its constants replaced. Both have the same canonical form:
//! that of [`crate::normalize`]'s fingerprint, with one difference. Before 10 constants are replaced by `?`, which can be an
//! operator of `jsonb` or `hstore` as well, and `date ? d` shows that a scanner cannot tell which. So in both texts each `?`
//! counts as a constant.

use crate::normalize::{
    CUT, QuestionMark, StatementPart, StatementPartKind, folded_parts, is_value, row,
};

/// A beginning with fewer words and signs says nothing, for example if the rest was a long comment.
const BEGINNING_PARTS_MIN: usize = 5;
/// Commands whose calls are counted with another text or with another command's.
const INCOMPARABLE: [&str; 3] = ["prepare", "execute", "deallocate"];
/// Commands whose statement is counted with the text of all, if `pg_stat_statements.track` is `all`.
const WRAPPERS: [&str; 5] = ["explain", "declare", "create", "copy", "refresh"];

/// How `pg_stat_statements` replaces constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConstantMark {
    /// `$1`, from PostgreSQL 10 on.
    Numbered,
    /// `?`, before.
    QuestionMark,
}

impl ConstantMark {
    fn question_mark(self) -> QuestionMark {
        match self {
            Self::Numbered => QuestionMark::Operator,
            Self::QuestionMark => QuestionMark::Constant,
        }
    }
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedForm {
    /// A statement.
    Whole,
    /// The beginning of a statement.
    Beginning,
    /// Nothing that identifies one: several statements, a beginning that is too short, or a command such as `EXECUTE`,
    /// whose executions are counted with the text of another.
    Incomparable,
}

/// A text in its canonical form.
///
/// ```
/// use pgassay_script::{ComparedText, ConstantMark};
/// let of = |text| ComparedText::new(text, false, ConstantMark::Numbered);
/// let session = of("SELECT * FROM t WHERE i = -5 AND d = DATE '2020-01-01';");
/// let counted = of("SELECT * FROM t WHERE i = $1 AND d = DATE $2");
/// assert_eq!(session, counted);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedText {
    /// Equal for equal statements. Of a beginning, every statement that begins so has it as prefix.
    pub canonical: String,
    /// What it is.
    pub form: ComparedForm,
    /// It may contain another statement that is counted as well, with the same text: `EXPLAIN …`.
    pub is_wrapper: bool,
}

impl ComparedText {
    /// The canonical form of a text, also of a normalized one. `is_cut` says that its end is missing, which a
    /// normalized text can show, too.
    pub fn new(text: &str, is_cut: bool, mark: ConstantMark) -> Self {
        let whole = text.strip_suffix(CUT);
        let is_cut = is_cut || whole.is_some();
        let mut parts = folded_parts(whole.unwrap_or(text), mark.question_mark());
        // A quote that is cut off.
        let is_cut = is_cut || parts.last().is_some_and(|it| it.text == CUT);
        if is_cut {
            shorten(&mut parts);
        }
        let first = parts.first().map_or("", |it| it.canonical.as_str());
        let has_several = parts.iter().any(|it| it.text == ";");
        let is_short = parts.is_empty() || (is_cut && parts.len() < BEGINNING_PARTS_MIN);
        // A character that could not be read, in whose place the other text may have another one.
        let is_damaged = text.contains(char::REPLACEMENT_CHARACTER);
        let is_elsewhere = INCOMPARABLE.contains(&first);
        let form = if has_several || is_short || is_damaged || is_elsewhere {
            ComparedForm::Incomparable
        } else if is_cut {
            ComparedForm::Beginning
        } else {
            ComparedForm::Whole
        };
        Self {
            is_wrapper: WRAPPERS.contains(&first),
            canonical: canonical(&parts),
            form,
        }
    }
}

fn canonical(parts: &[StatementPart]) -> String {
    let mut canonical = String::new();
    for part in parts.iter().filter(|it| !it.canonical.is_empty()) {
        canonical.push_str(&part.canonical);
        // No text contains it.
        canonical.push('\0');
    }
    canonical
}

/// Removes from the end of a beginning what the rest could change: the last word, which may be cut, and a list that would
/// be folded if it were whole.
fn shorten(parts: &mut Vec<StatementPart>) {
    while parts.last().is_some_and(|it| it.canonical.is_empty()) {
        parts.pop();
    }
    parts.pop();
    let length = [list_start(parts), row_start(parts)];
    let length = length.into_iter().flatten().min();
    parts.truncate(length.unwrap_or(parts.len()));
}

/// Where the second element of a list without end begins that may be one of values.
fn list_start(parts: &[StatementPart]) -> Option<usize> {
    let opening = parts.windows(2).rposition(|it| {
        let opening = (it[0].canonical.as_str(), it[1].text.as_str());
        matches!(opening, ("in", "(") | ("array", "["))
    })?;
    let start = opening + 2;
    let elements: Vec<_> = parts[start..].split(|it| it.text == ",").collect();
    let (_, before) = elements.split_last()?;
    let is_list = !before.is_empty() && before.iter().all(|it| is_value(it));
    is_list.then(|| start + before[0].len())
}

/// Where the second of the rows of `VALUES` begins.
fn row_start(parts: &[StatementPart]) -> Option<usize> {
    let is_values =
        |it: &StatementPart| it.canonical == "values" && it.kind == StatementPartKind::Word;
    let start = parts.iter().rposition(is_values)? + 1;
    let end = start + row(&parts[start..])?;
    let mut rest = parts[end..].iter().filter(|it| !it.canonical.is_empty());
    rest.next().is_some_and(|it| it.text == ",").then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str, mark: ConstantMark) -> ComparedText {
        let compared = ComparedText::new(text, false, mark);
        assert_eq!(compared.form, ComparedForm::Whole, "{text}");
        compared
    }

    /// Texts of clients, and what `pg_stat_statements` of 10.23 and 13.23 makes of them.
    const NUMBERED: [(&str, &str); 10] = [
        (
            "select * from t where b = true and c = false or v is null or b is not true",
            "select * from t where b = $1 and c = $2 or v is null or b is not true",
        ),
        (
            "update t set v = null where i = -5",
            "update t set v = $1 where i = $2",
        ),
        (
            "select extract(year from d) from t where d > date '2020-01-01' - interval '1 day'",
            "select extract($1 from d) from t where d > date $2 - interval $3",
        ),
        (
            "select * from t where i in (1, null, 3);",
            "select * from t where i in ($1, $2, $3)",
        ),
        (
            "insert into t(i, v) values (1, 2), (3, -4) ",
            "insert into t(i, v) values ($1, $2), ($3, $4)",
        ),
        (
            "select j ? 'k' and j->'k' ? 'x' from t where i = 5",
            "select j ? $1 and j->$2 ? $3 from t where i = $4",
        ),
        (
            "select date '2020-01-01' d, interval '1' day",
            "select date $1 d, interval $2 day",
        ),
        ("/* 17 */ select 1 -- y", "/* c */ select $1 /* x */ -- z"),
        (
            "select i from t where v = 5 order by 1 fetch first 5 rows only;",
            "select i from t where v = $1 order by 1 fetch first $2 rows only",
        ),
        (
            "select i::numeric(10,2), -i, - 5, +5 from t",
            "select i::numeric(10,2), -i, $1, +$2 from t",
        ),
    ];

    #[test]
    fn a_text_is_that_of_its_counters_from_10_on() {
        for (sent, counted) in NUMBERED {
            let mark = ConstantMark::Numbered;
            assert_eq!(whole(sent, mark), whole(counted, mark), "{sent}");
            let known = crate::normalize(sent).text;
            assert_eq!(whole(&known, mark), whole(counted, mark), "{known}");
        }
    }

    #[test]
    fn a_text_is_that_of_its_counters_on_9_6_also_with_question_marks_that_are_operators() {
        for (sent, counted) in [
            (
                "select j ? 'k' and j->'k' ? 'x' from t where i = 5",
                "select j ? ? and j->? ? ? from t where i = ?",
            ),
            (
                "select '{}'::jsonb ? 'k', j ?| array['a'] from t",
                "select ?::jsonb ? ?, j ?| array[?] from t",
            ),
            (
                "select date '2020-01-01' d, interval '1' day",
                "select date ? d, interval ? day",
            ),
            (
                "select i from t where i in (1, -2, null)",
                "select i from t where i in (?, ?, ?)",
            ),
            (
                "insert into t values (1, 'x'), (2, 'y')",
                "insert into t values (?, ?), (?, ?)",
            ),
            ("select -'5', - 5, a -1 from t", "select -?, ?, a -? from t"),
            (
                "select extract(year from d) from t",
                "select extract(? from d) from t",
            ),
            // A prepared statement's own parameters.
            (
                "select i from t where v = $1 and i = 7",
                "select i from t where v = $1 and i = ?",
            ),
        ] {
            let mark = ConstantMark::QuestionMark;
            assert_eq!(whole(sent, mark), whole(counted, mark), "{sent}");
            let known = crate::normalize(sent).text;
            assert_eq!(whole(&known, mark), whole(counted, mark), "{known}");
        }
    }

    #[test]
    fn different_statements_are_not_the_same_text() {
        for mark in [ConstantMark::Numbered, ConstantMark::QuestionMark] {
            for (one, other) in [
                ("select j ? 'k' from t", "select j @> 'k' from t"),
                ("select j ? 'k' from t", "select j ?| 'k' from t"),
                (
                    "select a from t where b is null",
                    "select a from t where b is not null",
                ),
                ("select a from t", "select b from t"),
                ("select a from t", "select a from \"T\""),
                (
                    "select a from t where a in (1, 2)",
                    "select a from t where a in (1, b)",
                ),
            ] {
                assert_ne!(whole(one, mark), whole(other, mark), "{one}");
            }
        }
    }

    #[test]
    fn several_statements_and_prepared_ones_have_no_counters_of_their_own() {
        for (text, is_cut) in [
            ("update t set v = 8 where i = 3; commit", false),
            ("PREPARE p AS SELECT 1", false),
            ("execute p(1)", false),
            ("", false),
            ("-- nothing", false),
            ("select a /* a long comment", false),
            ("select a from", true),
            ("select a\u{fffd} from t", false),
        ] {
            let compared = ComparedText::new(text, is_cut, ConstantMark::Numbered);
            assert_eq!(compared.form, ComparedForm::Incomparable, "{text}");
        }
        assert!(whole("explain select 1", ConstantMark::Numbered).is_wrapper);
        assert!(!whole("select 1", ConstantMark::Numbered).is_wrapper);
    }

    /// A long list is the usual reason why a text is cut.
    #[test]
    fn a_text_that_is_cut_anywhere_is_the_beginning_of_its_counters_text() {
        let folded = [
            (
                "select a, b from t where c = -1 and i in (1, -2, 'x'::text, null) and d like 'a%' limit 5",
                "select a, b from t where c = $1 and i in ($2, $3, $4::text, $5) and d like $6 limit $7",
            ),
            (
                "insert into t (a, b) values (1, 'x'), (2, 'y'), (3, 'z') on conflict do nothing",
                "insert into t (a, b) values ($1, $2), ($3, $4) on conflict do nothing",
            ),
            (
                "insert into t (a, b) values (1, f('x')), (2, 'y') returning array[1, 2, a]",
                "insert into t (a, b) values ($1, f($2)), ($3, $4) returning array[$5, $6, a]",
            ),
            (
                "select e'it\\'s', \"a b\", $x$a;b$x$ from t",
                "select $1, \"a b\", $2 from t",
            ),
        ];
        for (sent, counted) in NUMBERED.into_iter().chain(folded) {
            let counted = whole(counted, ConstantMark::Numbered).canonical;
            for end in 1..=sent.trim_end_matches([' ', ';']).len() {
                let known = crate::normalize(&sent[..end]).text;
                for text in [&sent[..end], known.as_str()] {
                    let cut = ComparedText::new(text, true, ConstantMark::Numbered);
                    assert_ne!(cut.form, ComparedForm::Whole);
                    assert!(counted.starts_with(&cut.canonical), "{text}: {cut:?}");
                }
            }
        }
    }

    /// The cut hides what follows, so it must not look like a shorter statement.
    #[test]
    fn a_normalized_text_that_was_cut_is_not_whole() {
        for text in [
            r"select a, b, c, d from t where e = 'it\'s",
            "select a, b, c from t where d = 'x",
        ] {
            let known = crate::normalize(text).text;
            let cut = ComparedText::new(&known, false, ConstantMark::Numbered);
            assert_eq!(cut.form, ComparedForm::Beginning, "{known}");
        }
    }
}
