//! Expressions: tokens in, postfix code out.
//!
//! A precedence-climbing parser that accepts the same language as pgbench's bison grammar,
//! including its peculiarities: comparisons do not associate (`1 < 2 < 3` is an error); `IS NULL`
//! and similar tests can follow anything and be followed by anything; `~` binds as loosely as the
//! bitwise operators; `a > b` is `b < a` with `b` evaluated first; and an argument list can begin
//! with a comma. Both parsers detect an error at the same token because both have the viable-prefix
//! property. A function's name and number of arguments are checked before the next token is read.
//! Source: exprparse.y, the same in 15 to 18.

use crate::eval::{call_pure, check_range};
use crate::expr::{Arity, BuiltinFunction, Expr, Op, function};
use crate::expr_lexer::{ExprError, ExprLexer, ExprToken, Mistake, Operator};
use crate::limits::ARGUMENTS_MAX;
use crate::names::VariableNames;
use crate::value::ScriptValue;

/// Maximum nesting of parentheses, prefix operators and CASEs. bison gives up at 10,000 symbols
/// with the same message. This depth needs less than a third of a thread's 2 MiB stack even in
/// debug builds.
const NESTING_MAX: u32 = 400;

/// Precedence levels, loosest first.
mod level {
    pub const OR: u8 = 1;
    pub const AND: u8 = 2;
    pub const IS: u8 = 4;
    pub const COMPARISON: u8 = 5;
    pub const BITWISE: u8 = 6;
    pub const SUM: u8 = 7;
    pub const PRODUCT: u8 = 8;
}

/// Parses the expression at `position`, up to the end of its line. Returns it and the beginning of
/// the next line.
pub(crate) fn parse(
    input: &[u8],
    position: usize,
    names: &mut VariableNames,
) -> Result<(Expr, usize), ExprError> {
    let lexer = ExprLexer {
        input,
        start: position,
        position,
    };
    let mut parser = ExprParser {
        lexer,
        token: ExprToken::End,
        names,
        code: Vec::new(),
        nesting: 0,
    };
    parser.advance()?;
    parser.expression(level::OR)?;
    if parser.token != ExprToken::End {
        return Err(parser.syntax_error());
    }
    let depth = depth(&parser.code);
    let expr = Expr {
        code: parser.code.into_boxed_slice(),
        depth,
        invalid_target: None,
    };
    Ok((expr, parser.lexer.position))
}

/// Returns the maximum stack depth of `code`.
pub(crate) fn depth(code: &[Op]) -> u32 {
    let (mut height, mut depth) = (0, 0);
    for op in code {
        height = match op {
            Op::Constant(_) | Op::Variable(_) | Op::Uniform { .. } => height + 1,
            Op::Call { arguments, .. } => height + 1 - arguments,
            Op::TooManyArguments => height + 1 - ARGUMENTS_MAX as u32,
            // The code after a jump runs only if the value before the jump was not produced.
            Op::And { .. } | Op::Or { .. } | Op::Unless { .. } | Op::Jump { .. } => height - 1,
            Op::Truth => height,
        };
        depth = depth.max(height);
    }
    depth
}

struct ExprParser<'a> {
    lexer: ExprLexer<'a>,
    token: ExprToken,
    names: &'a mut VariableNames,
    code: Vec<Op>,
    nesting: u32,
}

impl ExprParser<'_> {
    fn advance(&mut self) -> Result<(), ExprError> {
        self.token = self.lexer.next()?;
        Ok(())
    }

    fn error(&self, message: &'static str, detail: Option<String>) -> ExprError {
        ExprError(Box::new(Mistake {
            message,
            detail,
            end: self.lexer.position,
        }))
    }

    fn syntax_error(&self) -> ExprError {
        self.error("syntax error", None)
    }

    fn expect(&mut self, token: ExprToken) -> Result<(), ExprError> {
        if self.token == token {
            self.advance()
        } else {
            Err(self.syntax_error())
        }
    }

    /// Parses an operand and all following operators that bind at least as tightly as `loosest`.
    fn expression(&mut self, loosest: u8) -> Result<(), ExprError> {
        let start = self.code.len();
        self.operand()?;
        loop {
            match self.token {
                ExprToken::Is | ExprToken::IsNull | ExprToken::NotNull if loosest <= level::IS => {
                    self.test(start)?;
                }
                ExprToken::Operator(operator) if loosest <= precedence(operator) => {
                    self.operation(operator, start)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Parses `IS …`, `ISNULL` or `NOTNULL` after the operand whose code begins at `start`.
    fn test(&mut self, start: usize) -> Result<(), ExprError> {
        let mut is_negated = self.token == ExprToken::NotNull;
        let mut value = ScriptValue::Null;
        if self.token == ExprToken::Is {
            self.advance()?;
            if self.token == ExprToken::Not {
                is_negated = true;
                self.advance()?;
            }
            value = match self.token {
                ExprToken::Null => ScriptValue::Null,
                ExprToken::Bool(truth) => ScriptValue::Bool(truth),
                _ => return Err(self.syntax_error()),
            };
        }
        let middle = self.code.len();
        self.code.push(Op::Constant(value));
        self.call(BuiltinFunction::Is, &[start, middle]);
        if is_negated {
            self.call(BuiltinFunction::Not, &[start]);
        }
        self.advance()
    }

    /// Parses a binary operator and its right operand; the code of the left one begins at `start`.
    fn operation(&mut self, operator: Operator, start: usize) -> Result<(), ExprError> {
        let level = precedence(operator);
        self.advance()?;
        let middle = self.code.len();
        if matches!(operator, Operator::And | Operator::Or) {
            self.code.push(Op::Truth);
            self.expression(level + 1)?;
            self.code.push(Op::Truth);
            let skip = (self.code.len() - middle - 1) as u32;
            self.code[middle] = match operator {
                Operator::And => Op::And { skip },
                _ => Op::Or { skip },
            };
            return Ok(());
        }
        self.expression(level + 1)?;
        if let Some(function) = swapped(operator) {
            self.code[start..].rotate_left(middle - start);
            let middle = self.code.len() - (middle - start);
            self.call(function, &[start, middle]);
        } else {
            self.call(binary(operator), &[start, middle]);
        }
        let is_comparison = |operator| precedence(operator) == level::COMPARISON;
        match self.token {
            ExprToken::Operator(next) if level == level::COMPARISON && is_comparison(next) => {
                Err(self.syntax_error())
            }
            _ => Ok(()),
        }
    }

    /// Parses a constant, a variable, a call, a CASE, a parenthesized expression, or a prefix
    /// operator with its operand.
    fn operand(&mut self) -> Result<(), ExprError> {
        if self.nesting == NESTING_MAX {
            let detail = format!("nested more than {NESTING_MAX} levels deep");
            return Err(self.error("memory exhausted", Some(detail)));
        }
        self.nesting += 1;
        let start = self.code.len();
        match self.token {
            ExprToken::OpenParenthesis => {
                self.advance()?;
                self.expression(level::OR)?;
                self.expect(ExprToken::CloseParenthesis)?;
            }
            ExprToken::Operator(Operator::Plus) => {
                self.advance()?;
                self.operand()?;
            }
            ExprToken::Operator(Operator::Minus) => self.minus(start)?,
            ExprToken::Tilde => {
                self.advance()?;
                self.code.push(Op::Constant(ScriptValue::Int(-1)));
                self.expression(level::BITWISE + 1)?;
                self.call(BuiltinFunction::BitXor, &[start, start + 1]);
            }
            ExprToken::Not => {
                self.advance()?;
                self.expression(level::IS)?;
                self.call(BuiltinFunction::Not, &[start]);
            }
            ExprToken::Case => self.case()?,
            ExprToken::Word => self.function_call()?,
            ExprToken::Variable => {
                let slot = self.names.intern(&self.lexer.text()[1..]);
                self.code.push(Op::Variable(slot));
                self.advance()?;
            }
            ExprToken::Null => self.constant(ScriptValue::Null)?,
            ExprToken::Bool(truth) => self.constant(ScriptValue::Bool(truth))?,
            ExprToken::Int(int) => self.constant(ScriptValue::Int(int))?,
            ExprToken::Double(double) => self.constant(ScriptValue::Double(double))?,
            _ => return Err(self.syntax_error()),
        }
        self.nesting -= 1;
        Ok(())
    }

    fn constant(&mut self, value: ScriptValue) -> Result<(), ExprError> {
        self.code.push(Op::Constant(value));
        self.advance()
    }

    /// `-x` is `0 - x`, except for -2^63.
    fn minus(&mut self, start: usize) -> Result<(), ExprError> {
        self.advance()?;
        if self.token == ExprToken::IntMaxPlusOne {
            return self.constant(ScriptValue::Int(i64::MIN));
        }
        self.code.push(Op::Constant(ScriptValue::Int(0)));
        self.operand()?;
        self.call(BuiltinFunction::Sub, &[start, start + 1]);
        Ok(())
    }

    fn case(&mut self) -> Result<(), ExprError> {
        self.advance()?;
        let mut jumps = Vec::new();
        while self.token == ExprToken::When || jumps.is_empty() {
            self.expect(ExprToken::When)?;
            self.expression(level::OR)?;
            self.expect(ExprToken::Then)?;
            let unless = self.code.len();
            self.code.push(Op::Unless { skip: 0 });
            self.expression(level::OR)?;
            jumps.push(self.code.len());
            self.code.push(Op::Jump { skip: 0 });
            self.code[unless] = Op::Unless {
                skip: (self.code.len() - unless - 1) as u32,
            };
        }
        if self.token == ExprToken::Else {
            self.advance()?;
            self.expression(level::OR)?;
        } else {
            self.code.push(Op::Constant(ScriptValue::Null));
        }
        for jump in jumps {
            self.code[jump] = Op::Jump {
                skip: (self.code.len() - jump - 1) as u32,
            };
        }
        self.expect(ExprToken::EndCase)
    }

    fn function_call(&mut self) -> Result<(), ExprError> {
        let Some((name, function, arity)) = function(self.lexer.text()) else {
            let name = String::from_utf8_lossy(self.lexer.text()).into_owned();
            return Err(self.error("unexpected function name", Some(name)));
        };
        self.advance()?;
        self.expect(ExprToken::OpenParenthesis)?;
        let (mut starts, end) = self.arguments()?;
        let seed_missing = match arity {
            Arity::Exactly(count) if starts.len() != count => Err("unexpected number of arguments"),
            Arity::AtLeastOne if starts.is_empty() => Err("at least one argument expected"),
            Arity::SeedOptional(count) if starts.len() != count && starts.len() + 1 != count => {
                Err("unexpected number of arguments")
            }
            Arity::SeedOptional(count) => Ok(starts.len() != count),
            _ => Ok(false),
        };
        if seed_missing.map_err(|message| self.error(message, Some(name.to_owned())))? {
            starts.push(self.code.len());
            self.code.push(Op::Variable(VariableNames::DEFAULT_SEED));
        }
        if starts.len() > ARGUMENTS_MAX {
            self.code.truncate(end);
            self.code.push(Op::TooManyArguments);
        } else {
            self.call(function, &starts);
        }
        self.advance()
    }

    /// Parses the arguments up to the closing parenthesis, which stays the current token. Returns
    /// where the code of each begins, and where the code of the last allowed one ends.
    fn arguments(&mut self) -> Result<(Vec<usize>, usize), ExprError> {
        let (mut starts, mut end) = (Vec::new(), self.code.len());
        // The grammar allows `f(, x)` for `f(x)`.
        while self.token != ExprToken::CloseParenthesis {
            if self.token == ExprToken::Comma {
                self.advance()?;
            } else if !starts.is_empty() {
                return Err(self.syntax_error());
            }
            starts.push(self.code.len());
            self.expression(level::OR)?;
            if starts.len() <= ARGUMENTS_MAX {
                end = self.code.len();
            }
        }
        Ok((starts, end))
    }

    /// Emits a call of a function whose arguments' code begins at `starts`. If they are constants
    /// and the call cannot fail, emits its result.
    fn call(&mut self, function: BuiltinFunction, starts: &[usize]) {
        let first = starts.first().copied().unwrap_or(self.code.len());
        let call = Op::Call {
            function,
            arguments: starts.len() as u32,
        };
        // A constant is one step; a longer argument may end in a constant, which is irrelevant
        // here.
        let constants: Option<Vec<ScriptValue>> = self.code[first..]
            .iter()
            .map(|op| {
                if let Op::Constant(value) = op {
                    Some(*value)
                } else {
                    None
                }
            })
            .collect();
        let folded = constants.and_then(|values| fold(function, &values));
        match folded {
            Some(op) => {
                self.code.truncate(first);
                self.code.push(op);
            }
            None => self.code.push(call),
        }
    }
}

/// Returns the result of a call with constants, if it can be determined without drawing or failing.
pub(crate) fn fold(function: BuiltinFunction, values: &[ScriptValue]) -> Option<Op> {
    if function.is_pure() {
        return call_pure(function, values).ok().map(Op::Constant);
    }
    match (function, values) {
        (BuiltinFunction::Random, &[ScriptValue::Int(min), ScriptValue::Int(max)]) => {
            check_range(min, max).ok()?;
            Some(Op::Uniform {
                min,
                span: (max - min).cast_unsigned(),
            })
        }
        _ => None,
    }
}

fn precedence(operator: Operator) -> u8 {
    match operator {
        Operator::Or => level::OR,
        Operator::And => level::AND,
        Operator::Less
        | Operator::LessOrEqual
        | Operator::Greater
        | Operator::GreaterOrEqual
        | Operator::Equal
        | Operator::NotEqual => level::COMPARISON,
        Operator::BitOr
        | Operator::BitXor
        | Operator::BitAnd
        | Operator::ShiftLeft
        | Operator::ShiftRight => level::BITWISE,
        Operator::Plus | Operator::Minus => level::SUM,
        Operator::Times | Operator::Divide | Operator::Modulo => level::PRODUCT,
    }
}

/// Returns the function that takes the operands in reverse order.
fn swapped(operator: Operator) -> Option<BuiltinFunction> {
    match operator {
        Operator::Greater => Some(BuiltinFunction::Less),
        Operator::GreaterOrEqual => Some(BuiltinFunction::LessOrEqual),
        _ => None,
    }
}

fn binary(operator: Operator) -> BuiltinFunction {
    match operator {
        Operator::Less => BuiltinFunction::Less,
        Operator::LessOrEqual => BuiltinFunction::LessOrEqual,
        Operator::Equal => BuiltinFunction::Equal,
        Operator::NotEqual => BuiltinFunction::NotEqual,
        Operator::BitOr => BuiltinFunction::BitOr,
        Operator::BitXor => BuiltinFunction::BitXor,
        Operator::BitAnd => BuiltinFunction::BitAnd,
        Operator::ShiftLeft => BuiltinFunction::ShiftLeft,
        Operator::ShiftRight => BuiltinFunction::ShiftRight,
        Operator::Plus => BuiltinFunction::Add,
        Operator::Minus => BuiltinFunction::Sub,
        Operator::Times => BuiltinFunction::Mul,
        Operator::Divide => BuiltinFunction::Div,
        Operator::Modulo => BuiltinFunction::Mod,
        Operator::Or | Operator::And | Operator::Greater | Operator::GreaterOrEqual => {
            unreachable!("{operator:?} is emitted elsewhere")
        }
    }
}
