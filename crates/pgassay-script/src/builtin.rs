//! pgbench's built-in scripts, and sets of weighted scripts.
//!
//! Source: `builtin_script`, `findBuiltin`, `parseScriptWeight` and `chooseScript` in pgbench.c.

use std::sync::Arc;

use crate::rng::Rng;
use crate::script::ParsedScript;

/// The maximum number of scripts in a run.
pub const SCRIPTS_MAX: usize = 128;

/// A built-in pgbench script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Its name for `-b`.
    pub name: &'static str,
    /// Its name in reports.
    pub title: &'static str,
    /// Its text.
    pub text: &'static str,
}

// A macro per line that several scripts share.
macro_rules! accounts {
    () => {
        "\\set aid random(1, 100000 * :scale)\n"
    };
}
macro_rules! others {
    () => {
        "\\set bid random(1, 1 * :scale)\n\
         \\set tid random(1, 10 * :scale)\n\
         \\set delta random(-5000, 5000)\n"
    };
}
macro_rules! update_account {
    () => {
        "BEGIN;\n\
         UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;\n"
    };
}
macro_rules! select_account {
    () => {
        "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
    };
}
macro_rules! insert_history {
    () => {
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
         VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);\n\
         END;\n"
    };
}

/// The built-in scripts, in pgbench's order.
pub const BUILTINS: [Builtin; 3] = [
    Builtin {
        name: "tpcb-like",
        title: "<builtin: TPC-B (sort of)>",
        text: concat!(
            accounts!(),
            others!(),
            update_account!(),
            select_account!(),
            "UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;\n",
            "UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;\n",
            insert_history!(),
        ),
    },
    Builtin {
        name: "simple-update",
        title: "<builtin: simple update>",
        text: concat!(
            accounts!(),
            others!(),
            update_account!(),
            select_account!(),
            insert_history!(),
        ),
    },
    Builtin {
        name: "select-only",
        title: "<builtin: select only>",
        text: concat!(accounts!(), select_account!()),
    },
];

/// An invalid `-b` or `-f` option, with pgbench's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// No built-in script's name has this prefix.
    #[error("no builtin script found for name \"{name}\"")]
    NoBuiltin {
        /// The requested name.
        name: String,
    },
    /// Several built-in scripts' names have this prefix.
    #[error("ambiguous builtin name: {found} builtin scripts found for prefix \"{name}\"")]
    AmbiguousBuiltin {
        /// The number of matches.
        found: usize,
        /// The requested name.
        name: String,
    },
    /// The text after the last `@` is not a number.
    #[error("invalid weight specification: {text}")]
    InvalidWeight {
        /// The text, including its `@`.
        text: String,
    },
    /// The weight is negative or does not fit 31 bits.
    #[error("weight specification out of range (0 .. {}): {weight}", i32::MAX)]
    WeightRange {
        /// The weight.
        weight: i64,
    },
    /// There are more than 128 scripts.
    #[error("at most {SCRIPTS_MAX} SQL scripts are allowed")]
    TooManyScripts,
    /// All weights are zero.
    #[error("total script weight must not be zero")]
    ZeroWeight,
}

impl Builtin {
    /// Returns the only built-in script whose name begins with `name`.
    pub fn find(name: &str) -> Result<&'static Builtin, SelectionError> {
        let matching: Vec<&Builtin> = BUILTINS
            .iter()
            .filter(|builtin| builtin.name.starts_with(name))
            .collect();
        match matching[..] {
            [builtin] => Ok(builtin),
            [] => Err(SelectionError::NoBuiltin {
                name: name.to_owned(),
            }),
            _ => Err(SelectionError::AmbiguousBuiltin {
                found: matching.len(),
                name: name.to_owned(),
            }),
        }
    }
}

/// Splits `NAME@WEIGHT`; without `@` the weight is 1.
pub fn split_weight(option: &str) -> Result<(&str, u32), SelectionError> {
    let Some((name, weight)) = option.rsplit_once('@') else {
        return Ok((option, 1));
    };
    let invalid = || SelectionError::InvalidWeight {
        text: format!("@{weight}"),
    };
    // As C's strtol: leading blanks and a sign are allowed, trailing characters are not.
    let weight: i64 = weight
        .trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r'])
        .parse()
        .map_err(|_| invalid())?;
    match u32::try_from(weight) {
        Ok(value) if weight <= i64::from(i32::MAX) => Ok((name, value)),
        _ => Err(SelectionError::WeightRange { weight }),
    }
}

/// The scripts of a run and their weights.
#[derive(Clone, Debug, Default)]
pub struct ScriptSet {
    scripts: Vec<(Arc<ParsedScript>, u32)>,
}

impl ScriptSet {
    /// Creates an empty set.
    pub fn new() -> ScriptSet {
        ScriptSet::default()
    }

    /// Adds a script.
    pub fn push(&mut self, script: Arc<ParsedScript>, weight: u32) -> Result<(), SelectionError> {
        if self.scripts.len() == SCRIPTS_MAX {
            return Err(SelectionError::TooManyScripts);
        }
        self.scripts.push((script, weight));
        Ok(())
    }

    /// Returns the scripts and their weights.
    pub fn scripts(&self) -> &[(Arc<ParsedScript>, u32)] {
        &self.scripts
    }

    /// Returns the sum of the weights; a run requires one above zero.
    pub fn total_weight(&self) -> Result<u64, SelectionError> {
        let total = self
            .scripts
            .iter()
            .map(|(_, weight)| u64::from(*weight))
            .sum();
        if total == 0 {
            Err(SelectionError::ZeroWeight)
        } else {
            Ok(total)
        }
    }

    /// Chooses the next transaction's script as pgbench does with
    /// [`ThreadRngs::choose`](crate::ThreadRngs), and returns its index. With a single script it
    /// draws no random number.
    pub fn choose(&self, rng: &mut Rng) -> usize {
        if self.scripts.len() == 1 {
            return 0;
        }
        let total: u64 = self
            .scripts
            .iter()
            .map(|(_, weight)| u64::from(*weight))
            .sum();
        let mut left = rng.up_to(total.saturating_sub(1));
        for (index, (_, weight)) in self.scripts.iter().enumerate() {
            if left < u64::from(*weight) {
                return index;
            }
            left -= u64::from(*weight);
        }
        0
    }
}
