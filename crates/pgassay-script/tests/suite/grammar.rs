//! Random expressions: a tree, its text, and its expected value.
//!
//! Unlike the evaluator under test, the one here walks the tree and uses wider integers. The
//! printer writes only the parentheses that pgbench's precedence table requires.

#![allow(clippy::float_cmp, reason = "the language compares doubles exactly")]

use pgassay_script::ScriptValue;
use proptest::prelude::*;

/// An expression.
#[derive(Clone, Debug)]
pub enum Node {
    Literal(ScriptValue),
    Variable(&'static str),
    Prefix(&'static str, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    Is(Box<Node>, &'static str),
    Case(Vec<(Node, Node)>, Option<Box<Node>>),
    Call(&'static str, Vec<Node>),
}

/// The variables that expressions read, as text.
pub const DEFINES: [(&str, &str); 5] = [
    ("i", "3"),
    ("d", "-2.5"),
    ("t", "true"),
    ("n", "null"),
    ("big", "9223372036854775807"),
];

const LEVELS: [(&str, u8); 20] = [
    ("or", 1),
    ("and", 2),
    ("not", 3),
    ("<", 5),
    (">", 5),
    ("=", 5),
    ("<=", 5),
    (">=", 5),
    ("<>", 5),
    ("|", 6),
    ("#", 6),
    ("&", 6),
    ("<<", 6),
    (">>", 6),
    ("~", 6),
    ("+", 7),
    ("-", 7),
    ("*", 8),
    ("/", 8),
    ("%", 8),
];
const IS: u8 = 4;
const COMPARISON: u8 = 5;
const UNARY: u8 = 9;

fn level(operator: &str) -> u8 {
    LEVELS
        .iter()
        .find(|(known, _)| *known == operator)
        .unwrap()
        .1
}

impl Node {
    /// The text, in parentheses if it binds more loosely than `least`.
    pub fn text(&self, least: u8) -> String {
        let (own, text) = match self {
            Node::Literal(value) => {
                let mut text = Vec::new();
                value.write_text(&mut text);
                let mut text = String::from_utf8(text).unwrap();
                if matches!(value, ScriptValue::Double(_)) && !text.contains(['.', 'e']) {
                    text.push_str(".0");
                }
                (UNARY, text)
            }
            Node::Variable(name) => (UNARY, format!(":{name}")),
            Node::Prefix(sign @ ("-" | "+"), operand) => {
                // A literal of the minimum integer would lose its minus sign to the prefix.
                (UNARY, format!("{sign} {}", operand.text(UNARY)))
            }
            Node::Prefix("~", operand) => {
                (level("~"), format!("~{}", operand.text(level("~") + 1)))
            }
            Node::Prefix(word, operand) => {
                (level(word), format!("{word} {}", operand.text(level(word))))
            }
            Node::Binary(operator, left, right) => {
                let own = level(operator);
                let left = left.text(own + u8::from(own == COMPARISON));
                (own, format!("{left} {operator} {}", right.text(own + 1)))
            }
            Node::Is(operand, test) => (IS, format!("{} {test}", operand.text(IS))),
            Node::Case(branches, otherwise) => {
                let mut text = "case".to_owned();
                for (condition, result) in branches {
                    text += &[" when ", &condition.text(0), " then ", &result.text(0)].concat();
                }
                if let Some(otherwise) = otherwise {
                    text += &[" else ", &otherwise.text(0)].concat();
                }
                (UNARY, text + " end")
            }
            Node::Call(name, arguments) => {
                let arguments: Vec<_> = arguments.iter().map(|node| node.text(0)).collect();
                (UNARY, format!("{name}({})", arguments.join(", ")))
            }
        };
        if own < least {
            format!("({text})")
        } else {
            text
        }
    }

    /// Returns the expected value or error message. Only for functions that draw nothing.
    pub fn expected(&self) -> Result<ScriptValue, String> {
        match self {
            Node::Literal(value) => Ok(*value),
            Node::Variable(name) => Ok(match *name {
                "i" => ScriptValue::Int(3),
                "d" => ScriptValue::Double(-2.5),
                "t" => ScriptValue::Bool(true),
                "n" => ScriptValue::Null,
                _ => ScriptValue::Int(i64::MAX),
            }),
            Node::Prefix("+", operand) => operand.expected(),
            Node::Prefix("-", operand) => apply("-", ScriptValue::Int(0), operand.expected()?),
            Node::Prefix("~", operand) => apply("#", ScriptValue::Int(-1), operand.expected()?),
            Node::Prefix(_, operand) => match operand.expected()? {
                ScriptValue::Null => Ok(ScriptValue::Null),
                value => Ok(ScriptValue::Bool(!truth(value)?)),
            },
            Node::Binary(operator @ ("and" | "or"), left, right) => {
                let decisive = *operator == "or";
                match left.expected()? {
                    ScriptValue::Null => return Ok(ScriptValue::Null),
                    value if truth(value)? == decisive => return Ok(ScriptValue::Bool(decisive)),
                    _ => {}
                }
                match right.expected()? {
                    ScriptValue::Null => Ok(ScriptValue::Null),
                    value => Ok(ScriptValue::Bool(truth(value)?)),
                }
            }
            Node::Binary(">", left, right) => swapped("<", left, right),
            Node::Binary(">=", left, right) => swapped("<=", left, right),
            Node::Binary(operator, left, right) => {
                let left = left.expected()?;
                apply(operator, left, right.expected()?)
            }
            Node::Is(operand, test) => {
                let value = operand.expected()?;
                let wanted = match test.rsplit(' ').next().unwrap() {
                    "true" => ScriptValue::Bool(true),
                    "false" => ScriptValue::Bool(false),
                    _ => ScriptValue::Null,
                };
                Ok(ScriptValue::Bool((value == wanted) != test.contains("not")))
            }
            Node::Case(branches, otherwise) => {
                for (condition, result) in branches {
                    if condition.expected()?.is_true() {
                        return result.expected();
                    }
                }
                otherwise
                    .as_ref()
                    .map_or(Ok(ScriptValue::Null), |node| node.expected())
            }
            Node::Call(name, arguments) => {
                let arguments: Vec<ScriptValue> = arguments
                    .iter()
                    .map(Node::expected)
                    .collect::<Result<_, _>>()?;
                call(name, &arguments)
            }
        }
    }
}

fn swapped(operator: &str, left: &Node, right: &Node) -> Result<ScriptValue, String> {
    let right = right.expected()?;
    apply(operator, right, left.expected()?)
}

fn truth(value: ScriptValue) -> Result<bool, String> {
    match value {
        ScriptValue::Bool(truth) => Ok(truth),
        other => Err(format!("cannot coerce {} to boolean", other.type_name())),
    }
}

fn integer(value: ScriptValue) -> Result<i128, String> {
    match value {
        ScriptValue::Int(int) => Ok(i128::from(int)),
        ScriptValue::Double(double) => {
            let rounded = double.round_ties_even();
            if rounded.abs() < 9.3e18 && i64::try_from(rounded as i128).is_ok() {
                Ok(rounded as i128)
            } else {
                Err("double to int overflow".to_owned())
            }
        }
        other => Err(format!("cannot coerce {} to int", other.type_name())),
    }
}

fn double(value: ScriptValue) -> Result<f64, String> {
    match value {
        ScriptValue::Int(int) => Ok(int as f64),
        ScriptValue::Double(double) => Ok(double),
        other => Err(format!("cannot coerce {} to double", other.type_name())),
    }
}

fn apply(operator: &str, left: ScriptValue, right: ScriptValue) -> Result<ScriptValue, String> {
    if left == ScriptValue::Null || right == ScriptValue::Null {
        return Ok(ScriptValue::Null);
    }
    let has_double =
        matches!(left, ScriptValue::Double(_)) || matches!(right, ScriptValue::Double(_));
    if has_double && "+-*/<=<>".contains(operator) && operator != "<<" {
        let (left, right) = (double(left)?, double(right)?);
        return Ok(match operator {
            "+" => ScriptValue::Double(left + right),
            "-" => ScriptValue::Double(left - right),
            "*" => ScriptValue::Double(left * right),
            "/" => ScriptValue::Double(left / right),
            "<" => ScriptValue::Bool(left < right),
            "<=" => ScriptValue::Bool(left <= right),
            "=" => ScriptValue::Bool(left == right),
            _ => ScriptValue::Bool(left != right),
        });
    }
    let left = integer(left)?;
    let right = integer(right)?;
    let fits = |name: &str, value: i128| {
        let fitting = i64::try_from(value).map(ScriptValue::Int);
        fitting.map_err(|_| format!("bigint {name} out of range"))
    };
    match operator {
        "/" | "%" if right == 0 => Err("division by zero".to_owned()),
        "+" => fits("add", left + right),
        "-" => fits("sub", left - right),
        "*" => fits("mul", left * right),
        "/" => fits("div", left / right),
        "%" => Ok(ScriptValue::Int((left % right) as i64)),
        "&" => Ok(ScriptValue::Int((left & right) as i64)),
        "|" => Ok(ScriptValue::Int((left | right) as i64)),
        "#" => Ok(ScriptValue::Int((left ^ right) as i64)),
        "<<" => Ok(ScriptValue::Int((left << (right & 63)) as i64)),
        ">>" => Ok(ScriptValue::Int((left >> (right & 63)) as i64)),
        "<" => Ok(ScriptValue::Bool(left < right)),
        "<=" => Ok(ScriptValue::Bool(left <= right)),
        "=" => Ok(ScriptValue::Bool(left == right)),
        _ => Ok(ScriptValue::Bool(left != right)),
    }
}

fn call(name: &str, arguments: &[ScriptValue]) -> Result<ScriptValue, String> {
    if arguments.contains(&ScriptValue::Null) {
        return Ok(ScriptValue::Null);
    }
    let first = arguments[0];
    match name {
        "int" => integer(first).map(|value| ScriptValue::Int(value as i64)),
        "double" => double(first).map(ScriptValue::Double),
        "mod" => apply("%", first, arguments[1]),
        "abs" => match first {
            ScriptValue::Int(int) => Ok(ScriptValue::Int(int.wrapping_abs())),
            other => double(other)
                .map(|value| ScriptValue::Double(if value < 0.0 { -value } else { value })),
        },
        _ => {
            // Of equal values, such as 0 and -0, and if one is NaN, C's macros take the later one.
            let keeps = |best: f64, candidate: f64| {
                if name == "least" {
                    best < candidate
                } else {
                    best > candidate
                }
            };
            if arguments
                .iter()
                .any(|value| matches!(value, ScriptValue::Double(_)))
            {
                let mut best = double(first)?;
                for value in &arguments[1..] {
                    let candidate = double(*value)?;
                    best = if keeps(best, candidate) {
                        best
                    } else {
                        candidate
                    };
                }
                return Ok(ScriptValue::Double(best));
            }
            let mut values = Vec::new();
            for value in arguments {
                values.push(integer(*value)?);
            }
            let best = if name == "least" {
                values.iter().min()
            } else {
                values.iter().max()
            };
            Ok(ScriptValue::Int(*best.unwrap() as i64))
        }
    }
}

fn leaf() -> impl Strategy<Value = Node> {
    prop_oneof![
        (-20_i64..20).prop_map(|int| Node::Literal(ScriptValue::Int(int))),
        prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(1_i64 << 62)]
            .prop_map(|int| Node::Literal(ScriptValue::Int(int))),
        prop_oneof![
            Just(0.0),
            Just(0.5),
            Just(1.5),
            Just(-2.25),
            Just(1e10),
            Just(1e300)
        ]
        .prop_map(|double| Node::Literal(ScriptValue::Double(double))),
        prop_oneof![
            Just(ScriptValue::Bool(true)),
            Just(ScriptValue::Bool(false)),
            Just(ScriptValue::Null)
        ]
        .prop_map(Node::Literal),
        prop_oneof![Just("i"), Just("d"), Just("t"), Just("n"), Just("big")]
            .prop_map(Node::Variable),
    ]
}

/// Any expression of operators and of functions that draw nothing.
pub fn expression() -> impl Strategy<Value = Node> {
    const TESTS: [&str; 8] = [
        "is null",
        "is not null",
        "is true",
        "is not true",
        "is false",
        "is not false",
        "isnull",
        "notnull",
    ];
    leaf().prop_recursive(5, 40, 3, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        let binary: Vec<&str> = LEVELS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !["not", "~"].contains(name))
            .collect();
        prop_oneof![
            1 => (prop::sample::select(vec!["-", "+", "~", "not"]), boxed.clone())
                .prop_map(|(operator, operand)| Node::Prefix(operator, operand)),
            5 => (prop::sample::select(binary), boxed.clone(), boxed.clone())
                .prop_map(|(operator, left, right)| Node::Binary(operator, left, right)),
            1 => (boxed.clone(), prop::sample::select(TESTS.to_vec()))
                .prop_map(|(operand, test)| Node::Is(operand, test)),
            1 => (
                prop::collection::vec((inner.clone(), inner.clone()), 1..3),
                prop::option::of(boxed)
            )
                .prop_map(|(branches, otherwise)| Node::Case(branches, otherwise)),
            1 => (prop::sample::select(vec!["abs", "int", "double"]), inner.clone())
                .prop_map(|(name, argument)| Node::Call(name, vec![argument])),
            1 => (inner.clone(), inner.clone())
                .prop_map(|(left, right)| Node::Call("mod", vec![left, right])),
            1 => (
                prop::sample::select(vec!["least", "greatest"]),
                prop::collection::vec(inner, 1..4)
            )
                .prop_map(|(name, arguments)| Node::Call(name, arguments)),
        ]
    })
}
