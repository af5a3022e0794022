//! Scripts that pgbench rejects before it connects, and its messages after `pgbench: error: `.

pub const REFUSALS: &[(&str, &str)] = &[
    (
        "\\set i 1 +\n",
        "test.sql:1: syntax error in command \"set\"\n\\set i 1 +\n          ^ error found here",
    ),
    (
        "\\set i 1 +",
        "test.sql:1: syntax error in command \"set\"\n\\set i 1 +\n         ^ error found here",
    ),
    (
        "SELECT 1;\n\\SET i ;",
        "test.sql:2: unexpected character (;) in command \"SET\"\n\\SET i ;\n       ^ error found here",
    ),
    (
        "\\set i noSuch(1) + 1",
        "test.sql:1: unexpected function name (noSuch) in command \"set\"\n\\set i noSuch(1) + 1\n            ^ error found here",
    ),
    (
        "\\set d ln(1.0, 2.0))",
        "test.sql:1: unexpected number of arguments (ln) in command \"set\"\n\\set d ln(1.0, 2.0))\n                  ^ error found here",
    ),
    (
        "\\set i LEAST()\n",
        "test.sql:1: at least one argument expected (least) in command \"set\"\n\\set i LEAST()\n             ^ error found here",
    ),
    (
        "\\set i hash(1,2,3)",
        "test.sql:1: unexpected number of arguments (hash) in command \"set\"\n\\set i hash(1,2,3)\n                 ^ error found here",
    ),
    (
        "\\set i permute(1)",
        "test.sql:1: unexpected number of arguments (permute) in command \"set\"\n\\set i permute(1)\n                ^ error found here",
    ),
    (
        "\\set i 100000000000000000000",
        "test.sql:1: bigint constant overflow (100000000000000000000) in command \"set\"\n\\set i 100000000000000000000\n                           ^ error found here",
    ),
    (
        "\\set d .1E310",
        "test.sql:1: double constant overflow (.1E310) in command \"set\"\n\\set d .1E310\n            ^ error found here",
    ),
    (
        "\\set i 9223372036854775808",
        "test.sql:1: syntax error in command \"set\"\n\\set i 9223372036854775808\n                         ^ error found here",
    ),
    (
        "\\set i 1 < 2 < 3",
        "test.sql:1: syntax error in command \"set\"\n\\set i 1 < 2 < 3\n             ^ error found here",
    ),
    (
        "\\set i CASE TRUE THEN 1 END",
        "test.sql:1: syntax error in command \"set\"\n\\set i CASE TRUE THEN 1 END\n               ^ error found here",
    ),
    (
        "\\set i (1 \\\n  + )\nSELECT 1",
        "test.sql:1: syntax error in command \"set\"\n\\set i (1 \\\n  + )\n                ^ error found here",
    ),
    (
        "\\if\n\\endif",
        "test.sql:1: syntax error in command \"if\"\n\\if\n   ^ error found here",
    ),
    (
        "\\set i",
        "test.sql:1: syntax error in command \"set\"\n\\set i\n     ^ error found here",
    ),
    ("\\set", "test.sql:1: missing argument in command \"set\""),
    (
        "\\else BAD",
        "test.sql:1: unexpected argument in command \"else\"\n\\else BAD",
    ),
    (
        "\\syncpipeline x",
        "test.sql:1: unexpected argument in command \"syncpipeline\"\n\\syncpipeline x",
    ),
    (
        "\\nosuch command",
        "test.sql:1: invalid command in command \"nosuch\"\n\\nosuch command",
    ),
    (
        "\\shell",
        "test.sql:1: missing command in command \"shell\"\n\\shell",
    ),
    (
        "\\setshell var",
        "test.sql:1: missing argument in command \"setshell\"\n\\setshell var",
    ),
    (
        "\\sleep",
        "test.sql:1: missing argument in command \"sleep\"\n\\sleep",
    ),
    (
        "\\sleep too many args",
        "test.sql:1: too many arguments in command \"sleep\"\n\\sleep too many args\n                ^ error found here",
    ),
    (
        "\\sleep 1 week",
        "test.sql:1: unrecognized time unit, must be us, ms or s (week) in command \"sleep\"\n\\sleep 1 week\n         ^ error found here",
    ),
    (
        "\\sleep 1w",
        "test.sql:1: unrecognized time unit, must be us, ms or s (w) in command \"sleep\"\n\\sleep 1w\n        ^ error found here",
    ),
    (
        "\\sleep 1x ms",
        "test.sql:1: invalid sleep time, must be an integer (1x) in command \"sleep\"\n\\sleep 1x ms\n       ^ error found here",
    ),
    ("\\gset", "test.sql:1: \\gset must follow an SQL command"),
    (
        "\\set i +1\n\\gset",
        "test.sql:2: \\gset must follow an SQL command (\\set i +1)",
    ),
    (
        "SELECT 1 \\gset\n\\aset",
        "test.sql:2: \\gset must follow an SQL command",
    ),
    (
        "SELECT 1 \\gset a b",
        "test.sql:1: too many arguments in command \"gset\"\n\\gset a b",
    ),
    ("-- nothing\n", "empty command list for script \"test.sql\""),
];
