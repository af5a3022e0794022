//! Parses checks and expressions.

use std::fmt;

use thiserror::Error;

use crate::expression::{
    ExpectationCheck, Expression, Figure, Percentile, RatioFigure, Relation, Where,
};
use crate::study::{Study, StudyError, StudySource, most_similar};

/// An error in an expression, with what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ExpressionError(pub(crate) String);

fn error<T>(words: impl Into<String>) -> Result<T, ExpressionError> {
    Err(ExpressionError(words.into()))
}

const FIGURES: &str = "tps_ratio, latency_ratio, p95_ratio, p99_ratio, cpu_ratio, tps, rate, per_day, \
latency_ms, p50_ms, p95_ms, p99_ms, cpu_us, share(FUNCTION), counted(COUNTER), per_second(COUNTER), leading";

/// Parses a check.
pub fn parse_check(text: &str) -> Result<ExpectationCheck, ExpressionError> {
    let (text, conditions) = split_where(text)?;
    let mut parser = Parser::new(text)?;
    let left = parser.sum()?;
    let sign = parser.next();
    let relation = match sign {
        Some(CheckToken::Sign("=")) => {
            let is_leading = matches!(
                &left,
                Expression::Figure {
                    figure: Figure::Leading,
                    ..
                }
            );
            if !is_leading {
                return error(
                    "`=` works only with `leading`; for a number, write `~ … within 10%`",
                );
            }
            let Some(CheckToken::Word(word)) = parser.next() else {
                return error("expected the name of a phase or subsystem after `leading =`");
            };
            parser.end()?;
            return Ok(ExpectationCheck {
                left,
                relation: Relation::Is(word),
                right: None,
                conditions,
            });
        }
        Some(CheckToken::Sign("<")) => Relation::Less,
        Some(CheckToken::Sign("<=")) => Relation::LessOrEqual,
        Some(CheckToken::Sign(">")) => Relation::More,
        Some(CheckToken::Sign(">=")) => Relation::MoreOrEqual,
        Some(CheckToken::Sign("~")) => Relation::Within(0.0),
        _ => return error("a check must compare: `a.tps_ratio > 1.2` or `a.tps ~ 100 within 20%`"),
    };
    let right = parser.sum()?;
    let relation = if relation == Relation::Within(0.0) {
        parser.within()?
    } else {
        relation
    };
    parser.end()?;
    Ok(ExpectationCheck {
        left,
        relation,
        right: Some(right),
        conditions,
    })
}

/// Parses an expression and its conditions.
pub fn parse_expression(text: &str) -> Result<(Expression, Vec<Where>), ExpressionError> {
    let (text, conditions) = split_where(text)?;
    let mut parser = Parser::new(text)?;
    let found = parser.sum()?;
    parser.end()?;
    Ok((found, conditions))
}

/// Parses a variant and the conditions under which it is compared with the baseline.
pub fn parse_comparison(text: &str) -> Result<(String, Vec<Where>), ExpressionError> {
    let (text, conditions) = split_where(text)?;
    let mut parser = Parser::new(text)?;
    let Some(CheckToken::Word(variant)) = parser.next() else {
        return error("expected the name of a variant, in quotes unless it is a single word");
    };
    parser.end()?;
    Ok((variant, conditions))
}

fn split_where(text: &str) -> Result<(&str, Vec<Where>), ExpressionError> {
    match text.split_once(" where ") {
        None => Ok((text, Vec::new())),
        Some((text, conditions)) => Ok((text, wheres(conditions)?)),
    }
}

/// `script = plain and clients = 1|8`.
fn wheres(text: &str) -> Result<Vec<Where>, ExpressionError> {
    let one = |part: &str| {
        let Some((name, values)) = part.split_once('=') else {
            return error(format!(
                "\"{}\" is not a condition; write `script = plain and clients = 8`",
                part.trim()
            ));
        };
        Ok(Where {
            name: name.trim().to_owned(),
            values: values
                .split('|')
                .map(|value| value.trim().to_owned())
                .collect(),
        })
    };
    text.split(" and ").map(one).collect()
}

#[derive(Debug, Clone, PartialEq)]
enum CheckToken {
    Number(f64),
    Word(String),
    /// The content of square brackets.
    Brackets(String),
    Sign(&'static str),
}

impl fmt::Display for CheckToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::Word(word) => f.write_str(word),
            Self::Brackets(text) => write!(f, "[{text}]"),
            Self::Sign(sign) => f.write_str(sign),
        }
    }
}

const SIGNS: [&str; 14] = [
    "<=", ">=", "<", ">", "=", "~", "+", "-", "*", "/", "(", ")", ".", "%",
];

struct Parser {
    tokens: Vec<CheckToken>,
    at: usize,
}

impl Parser {
    fn new(text: &str) -> Result<Self, ExpressionError> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '\'' | '[' => {
                    let close = if first == '[' { ']' } else { '\'' };
                    let Some(end) = rest[1..].find(close) else {
                        return error(format!("`{first}` has no closing `{close}`"));
                    };
                    let inside = rest[1..=end].to_owned();
                    tokens.push(if first == '[' {
                        CheckToken::Brackets(inside)
                    } else {
                        CheckToken::Word(inside)
                    });
                    end + 2
                }
                '0'..='9' => {
                    let number = |c: char| c.is_ascii_digit() || c == '_' || c == '.';
                    let end = rest.find(|c| !number(c)).unwrap_or(rest.len());
                    let Ok(value) = rest[..end].replace('_', "").parse() else {
                        return error(format!("\"{}\" is not a number", &rest[..end]));
                    };
                    tokens.push(CheckToken::Number(value));
                    end
                }
                c if c.is_alphabetic() || c == '_' => {
                    let word = |c: char| c.is_alphanumeric() || c == '_';
                    let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                    tokens.push(CheckToken::Word(rest[..end].to_owned()));
                    end
                }
                _ => {
                    let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) else {
                        return error(format!("unexpected `{first}`"));
                    };
                    tokens.push(CheckToken::Sign(sign));
                    sign.len()
                }
            };
            rest = rest[length..].trim_start();
        }
        Ok(Self { tokens, at: 0 })
    }

    fn next(&mut self) -> Option<CheckToken> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// Consumes this sign if it is next, and returns whether it was.
    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(CheckToken::Sign(it)) if *it == sign);
        self.at += usize::from(found);
        found
    }

    fn end(&self) -> Result<(), ExpressionError> {
        match self.tokens.get(self.at) {
            None => Ok(()),
            Some(token) => error(format!("unexpected `{token}` after the expression")),
        }
    }

    /// `within 20%`.
    fn within(&mut self) -> Result<Relation, ExpressionError> {
        let words = [self.next(), self.next(), self.next()];
        match words {
            [
                Some(CheckToken::Word(word)),
                Some(CheckToken::Number(share)),
                Some(CheckToken::Sign("%")),
            ] if word == "within" => Ok(Relation::Within(share / 100.0)),
            _ => error("expected a tolerance after `~ …`, such as `within 20%`"),
        }
    }

    fn sum(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.product()?;
        loop {
            let sign = match (self.takes("+"), self.takes("-")) {
                (true, _) => '+',
                (_, true) => '-',
                _ => return Ok(left),
            };
            left = Expression::Binary(Box::new(left), sign, Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.factor()?;
        loop {
            let sign = match (self.takes("*"), self.takes("/")) {
                (true, _) => '*',
                (_, true) => '/',
                _ => return Ok(left),
            };
            left = Expression::Binary(Box::new(left), sign, Box::new(self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Expression, ExpressionError> {
        match self.next() {
            Some(CheckToken::Number(value)) => Ok(Expression::Number(value)),
            Some(CheckToken::Sign("(")) => {
                let inside = self.sum()?;
                if self.takes(")") {
                    Ok(inside)
                } else {
                    error("`(` has no closing `)`")
                }
            }
            Some(CheckToken::Word(word)) if self.takes(".") => {
                let figure = self.figure()?;
                let at = match self.tokens.get(self.at) {
                    Some(CheckToken::Brackets(text)) => {
                        self.at += 1;
                        wheres(text)?
                    }
                    _ => Vec::new(),
                };
                Ok(Expression::Figure {
                    variant: word,
                    figure,
                    at,
                })
            }
            Some(CheckToken::Word(word)) => Ok(Expression::Condition(word)),
            _ => error("expected a number, `VARIANT.FIGURE` or the name of a condition"),
        }
    }

    fn figure(&mut self) -> Result<Figure, ExpressionError> {
        let Some(CheckToken::Word(name)) = self.next() else {
            return error(format!(
                "expected a figure after `VARIANT.`: one of {FIGURES}"
            ));
        };
        Ok(match name.as_str() {
            "tps_ratio" | "rate_ratio" => Figure::Ratio(RatioFigure::Throughput),
            "latency_ratio" => Figure::Ratio(RatioFigure::Mean),
            "p95_ratio" => Figure::Ratio(RatioFigure::P95),
            "p99_ratio" => Figure::Ratio(RatioFigure::P99),
            "cpu_ratio" => Figure::Ratio(RatioFigure::Cpu),
            "tps" => Figure::Tps,
            "rate" => Figure::Rate,
            "per_day" => Figure::PerDay,
            "latency_ms" => Figure::LatencyMs(Percentile::Mean),
            "p50_ms" => Figure::LatencyMs(Percentile::P50),
            "p95_ms" => Figure::LatencyMs(Percentile::P95),
            "p99_ms" => Figure::LatencyMs(Percentile::P99),
            "cpu_us" => Figure::CpuUs,
            "leading" => Figure::Leading,
            "share" => Figure::Share(self.argument()?),
            "counted" => Figure::Counted(self.argument()?),
            "per_second" => Figure::PerSecond(self.argument()?),
            _ => return error(format!("there is no figure \"{name}\"; known: {FIGURES}")),
        })
    }

    /// A name in parentheses; names of counters contain a dot.
    fn argument(&mut self) -> Result<String, ExpressionError> {
        let mut name = String::new();
        if !self.takes("(") {
            return error("expected a name in parentheses");
        }
        loop {
            match self.next() {
                Some(CheckToken::Word(word)) => name.push_str(&word),
                Some(CheckToken::Sign(".")) => name.push('.'),
                Some(CheckToken::Sign(")")) if !name.is_empty() => return Ok(name),
                _ => return error("expected a name in parentheses"),
            }
        }
    }
}

/// Checks that a study's expressions can be parsed and that the names in them exist.
pub fn check_names(study: &Study, source: &StudySource) -> Result<(), StudyError> {
    for (index, expected) in study.expect.iter().enumerate() {
        let path = ["expect", &index.to_string(), "check"];
        let at_path = |error: ExpressionError| source.error_at(&path, error.to_string());
        let check = parse_check(&expected.check).map_err(at_path)?;
        for side in [Some(&check.left), check.right.as_ref()]
            .into_iter()
            .flatten()
        {
            check_expression_names(side, study).map_err(at_path)?;
        }
        known_conditions(&check.conditions, study).map_err(at_path)?;
        some_condition_has(&check.conditions, study).map_err(at_path)?;
    }
    let rows = study.reference.iter().flat_map(|it| &it.row);
    for (index, row) in rows.enumerate() {
        let path = ["reference", "row", &index.to_string(), "is"];
        let at_path = |error: ExpressionError| source.error_at(&path, error.to_string());
        let (found, conditions) = parse_expression(&row.is).map_err(at_path)?;
        check_expression_names(&found, study).map_err(at_path)?;
        known_conditions(&conditions, study).map_err(at_path)?;
        some_condition_has(&conditions, study).map_err(at_path)?;
    }
    if let Some(text) = &study.explain {
        let at_path = |error: ExpressionError| source.error_at(&["explain"], error.to_string());
        known_comparison(text, study).map_err(at_path)?;
    }
    let Some(reference) = &study.reference else {
        return Ok(());
    };
    let names = || reference.row.iter().map(|row| row.name.as_str());
    match &reference.base {
        Some(base) if !names().any(|name| name == base) => {
            let message = format!("there is no reference row \"{base}\" for `base`");
            Err(source.error_at(&["reference", "base"], message))
        }
        _ => Ok(()),
    }
}

fn check_expression_names(expression: &Expression, study: &Study) -> Result<(), ExpressionError> {
    match expression {
        Expression::Number(_) => Ok(()),
        Expression::Condition(name) => known_condition(name, study),
        Expression::Binary(left, _, right) => {
            check_expression_names(left, study)?;
            check_expression_names(right, study)
        }
        Expression::Figure { variant, at, .. } => {
            known_variant(variant, study)?;
            known_conditions(at, study)
        }
    }
}

fn known_comparison(text: &str, study: &Study) -> Result<(), ExpressionError> {
    let (variant, conditions) = parse_comparison(text)?;
    known_variant(&variant, study)?;
    if study.variant.first().is_some_and(|it| it.name == variant) {
        return error(format!(
            "\"{variant}\" is the baseline; name another variant to compare with it"
        ));
    }
    known_conditions(&conditions, study)
}

fn known_variant(name: &str, study: &Study) -> Result<(), ExpressionError> {
    let names = || study.variant.iter().map(|it| it.name.as_str());
    known_name("variant", name, names)
}

fn known_conditions(conditions: &[Where], study: &Study) -> Result<(), ExpressionError> {
    conditions
        .iter()
        .try_for_each(|it| known_condition(&it.name, study))
}

/// Fails if a list of the study has none of the values: that would never be measured.
fn some_condition_has(conditions: &[Where], study: &Study) -> Result<(), ExpressionError> {
    for it in conditions {
        let listed = listed_values(&it.name, study);
        if !listed.is_empty() && !it.values.iter().any(|value| listed.contains(value)) {
            return error(format!(
                "no condition has {} = {}; the study has {}",
                it.name,
                it.values.join("|"),
                listed.join(", ")
            ));
        }
    }
    Ok(())
}

/// The values that a study lists for a condition, also for `--quick`; none if the command line or variants give them.
fn listed_values(name: &str, study: &Study) -> Vec<String> {
    let lists = &study.conditions;
    let quick = study.quick.as_ref();
    match name {
        "clients" => {
            let of_quick = quick.and_then(|it| it.clients.as_ref());
            let all = lists.clients.iter().chain(of_quick.into_iter().flatten());
            all.map(u32::to_string).collect()
        }
        "script" => {
            let of_quick = quick.and_then(|it| it.script.as_ref());
            let all = lists.script.iter().chain(of_quick.into_iter().flatten());
            all.cloned().collect()
        }
        _ => {
            let lists = [&lists.settings, &lists.session, &lists.parameters];
            let values = lists.into_iter().find_map(|it| it.get(name));
            let of_quick = quick.and_then(|it| it.parameters.get(name));
            let all = values.into_iter().flatten().chain(of_quick);
            all.map(|it| it.0.clone()).collect()
        }
    }
}

fn known_condition(name: &str, study: &Study) -> Result<(), ExpressionError> {
    let lists = &study.conditions;
    let fixed = ["clients", "script", "version", "protocol", "network"];
    let named = lists.settings.keys().chain(lists.session.keys());
    let named = || {
        named
            .clone()
            .chain(lists.parameters.keys())
            .map(String::as_str)
    };
    known_name("condition", name, || fixed.into_iter().chain(named()))
}

fn known_name<'a, I: Iterator<Item = &'a str>>(
    what: &str,
    name: &str,
    known: impl Fn() -> I,
) -> Result<(), ExpressionError> {
    if known().any(|it| it == name) {
        return Ok(());
    }
    // Quoted: a name may contain a comma.
    let list: Vec<String> = known().map(|it| format!("\"{it}\"")).collect();
    let hint = most_similar(name, known())
        .map(|it| format!("; did you mean \"{it}\"?"))
        .unwrap_or_default();
    error(format!(
        "there is no {what} \"{name}\"; known: {}{hint}",
        list.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_read_with_their_conditions() {
        let found =
            parse_check("prepared.tps_ratio > 1.2 where script = plain and clients = 1|8").unwrap();
        assert_eq!(found.relation, Relation::More);
        assert_eq!(found.conditions[1].values, ["1", "8"]);
        let found = parse_check("'128 range'.share(ExecInit) >= 50").unwrap();
        let Expression::Figure {
            variant, figure, ..
        } = found.left
        else {
            panic!("a figure")
        };
        assert_eq!(
            (variant.as_str(), figure),
            ("128 range", Figure::Share("ExecInit".to_owned()))
        );
        let found = parse_check("a.leading = plan").unwrap();
        assert_eq!(
            (found.relation, found.right),
            (Relation::Is("plan".to_owned()), None)
        );
    }

    #[test]
    fn arithmetic_binds_as_it_should() {
        let found = parse_check(
            "p.tps_ratio ~ 52 * (network + w.latency_ms[network = 0ms]) / 2 within 20%",
        );
        let ExpectationCheck {
            relation, right, ..
        } = found.unwrap();
        assert_eq!(relation, Relation::Within(0.2));
        let Some(Expression::Binary(left, '/', _)) = right else {
            panic!("a quotient: {right:?}")
        };
        assert!(matches!(*left, Expression::Binary(_, '*', _)));
    }

    #[test]
    fn a_comparison_is_a_variant_and_where() {
        let (variant, conditions) = parse_comparison("'many, cache' where clients = 1|16").unwrap();
        assert_eq!(variant, "many, cache");
        assert_eq!(conditions[0].values, ["1", "16"]);
        assert_eq!(
            parse_comparison("many").unwrap(),
            ("many".to_owned(), Vec::new())
        );
        for text in ["", "many, cache", "many.tps", "3"] {
            assert!(parse_comparison(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parse_errors_say_what_is_expected() {
        for (text, words) in [
            (
                "a.tpps > 1",
                "there is no figure \"tpps\"; known: tps_ratio",
            ),
            ("a.tps", "a check must compare"),
            ("a.tps ~ 3", "within 20%"),
            ("a.tps = 3", "`=` works only with `leading`"),
            ("(a.tps > 1", "`(` has no closing `)`"),
            ("a.tps > 1 2", "unexpected `2` after"),
            ("a.tps > 1 where plain", "is not a condition"),
            ("a.share > 1", "in parentheses"),
            ("'a.tps > 1", "no closing"),
            ("a.tps > 1 ! 2", "unexpected `!`"),
        ] {
            let message = parse_check(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
