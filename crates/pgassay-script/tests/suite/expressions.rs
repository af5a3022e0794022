//! Values of expressions. PostgreSQL's own pgbench tests rely on the numbers of seed 5432.

use crate::common::{run, value};
use pgassay_script::Rng;

#[track_caller]
fn assert_values(table: &[(&str, &str)]) {
    let defines = [
        ("foo", "-10.1"),
        ("i", "+3"),
        ("n", "null"),
        ("t", "t"),
        ("f", "of"),
        ("d", "1.0"),
    ];
    for (expression, expected) in table {
        assert_eq!(value(expression, &defines), *expected, "{expression}");
    }
}

#[test]
fn generator_is_xoroshiro128_seeded_by_splitmix64() {
    // From the reference implementations: splitmix64 of 0 gives these two words, and xoroshiro with
    // that state draws 5 * 0xE220A8397B1DCDAF, rotated by 7, times 9.
    let first = 0xE220_A839_7B1D_CDAF_u64
        .wrapping_mul(5)
        .rotate_left(7)
        .wrapping_mul(9);
    assert_eq!(Rng::from_seed(0).next_u64(), first);
    assert_eq!(
        Rng::from_seed(0).unit().to_bits(),
        ((first >> 12) as f64 / 2_f64.powi(52)).to_bits()
    );
    assert_eq!(Rng::from_seed(9).up_to(0), 0);
}

#[test]
fn draws_of_seed_5432_are_pgbench_s() {
    let outcome = run(
        "\\set a debug(random(10, 19))\n\
         \\set b debug(random_exponential(100, 199, 10.0))\n\
         \\set c debug(random_gaussian(1000, 1999, 10.0))\n\
         \\set d debug(random_zipfian(1, 9, 1.3))\n",
        &[],
    );
    let expected = ["1): int 17", "2): int 104", "3): int 1498", "4): int 3"];
    for (line, expected) in outcome.debugged.iter().zip(expected) {
        assert!(line.ends_with(expected), "{line} instead of {expected}");
    }
    assert_eq!(outcome.debugged.len(), 4);
    assert_eq!(outcome.debugged[0], "debug(script=0,command=1): int 17");
}

#[test]
fn variable_and_constant_ranges_draw_the_same() {
    for (min, max) in [
        (1_i64, 1_000_000_i64),
        (-5000, 5000),
        (7, 7),
        (i64::MIN / 2, i64::MAX / 2),
    ] {
        let defines = [("a", &*min.to_string()), ("b", &*max.to_string())];
        let constant = value(&format!("random({min}, {max})"), &defines);
        assert_eq!(constant, value("random(:a, :b)", &defines));
        // A double as a bound is rounded.
        assert_eq!(
            value("random(1, 1000000)", &[]),
            value("random(0.6, 1e6)", &[])
        );
    }
}

#[test]
fn integer_arithmetic() {
    assert_values(&[
        ("17 / (4|1) + ( 4 + (7 >> 2))", "int 8"),
        ("- (3 * 4 - (-(~ 1) + -(~ 0))) / -1 + 3 % -1", "int 9"),
        ("10 + (0 + 0 * 0 - 0 / 1)", "int 10"),
        (
            "64 % (((2 + 1 * 2 + (1 # 2) | 4 * (2 & 11)) - (1 << 2)) + 2)",
            "int 12",
        ),
        (
            "10 + mod(13 * 7 + 12, 13) - mod(-19 * 11 - 17, 19)",
            "int 39",
        ),
        ("-9223372036854775808", "int -9223372036854775808"),
        ("-(-9223372036854775808 + 1)", "int 9223372036854775807"),
        ("-9223372036854775808 % -1", "int 0"),
        ("-7 / 2", "int -3"),
        ("-7 % 2", "int -1"),
        ("7.6 % 3", "int 2"),
        ("~1 + 2", "int -4"),
        ("1 << 65", "int 2"),
        ("-1 >> 1", "int -1"),
        (
            "abs(-4) + abs(-9223372036854775808)",
            "int -9223372036854775804",
        ),
        ("greatest(5, 4, 3, 2) + least(, -5, -4)", "int 0"),
        ("int(2.5) + int(3.5) + int(7.3)", "int 13"),
        (":i * :i", "int 9"),
        ("hash(10, 5432)", "int -5817877081768721676"),
        ("hash(10, 5432) = hash_murmur2(10, 5432)", "boolean true"),
        ("hash_fnv1a(10, 5432)", "int -7793829335365542153"),
        ("hash(10) = hash(10, :default_seed)", "boolean true"),
        ("permute(0, 3) + permute(1, 3) + permute(2, 3)", "int 3"),
        ("permute(7, 1)", "int 0"),
        ("- -9223372036854775808", "bigint sub out of range"),
        ("(1<<62) + (1<<62)", "bigint add out of range"),
        ("0 - (1<<62) - (1<<62) - (1<<62)", "bigint sub out of range"),
        ("2 * (1<<62)", "bigint mul out of range"),
        ("-9223372036854775808 / -1", "bigint div out of range"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        (
            "int(1E32)",
            "double to int overflow for 100000000000000005366162204393472.000000",
        ),
        ("int(0.0 / 0.0 + 1)", "double to int overflow for NaN"),
        (
            "int(9223372036854775807.0)",
            "double to int overflow for 9223372036854775808.000000",
        ),
        ("int(-9223372036854775808.0)", "int -9223372036854775808"),
    ]);
}

#[test]
fn doubles() {
    assert_values(&[
        ("sqrt(2)", "double 1.4142135623731"),
        ("double(1 + 1) * (-75.0 / :foo)", "double 14.8514851485149"),
        ("pi() * 4.9", "double 15.39380400259"),
        ("greatest(4, 2, -1.17) * 4.0 * Ln(Exp(1.0))", "double 16"),
        ("least(-5.18, .0E0, 1.0/0) * -3.3", "double 17.094"),
        ("pow(-3,3)", "double -27"),
        ("pow(0,0)", "double 1"),
        ("power(-5.0,-5.0)", "double -0.00032"),
        ("pow(9223372036854775807, 2)", "double 8.50705917302346e+37"),
        ("pow(10,30)", "double 1e+30"),
        ("1e15", "double 1e+15"),
        ("123456789012345.6", "double 123456789012346"),
        ("999999999999999.9", "double 1e+15"),
        ("0.0001", "double 0.0001"),
        ("0.00001234", "double 1.234e-05"),
        ("1e-300", "double 1e-300"),
        ("-0.5", "double -0.5"),
        ("0.1 + 0.2", "double 0.3"),
        ("100.0", "double 100"),
        ("1.0 / 0", "double Infinity"),
        ("-1.0 / 0", "double -Infinity"),
        ("- 0.0", "double 0"),
        ("0.0 * -1", "double -0"),
        ("1e308 * 10", "double Infinity"),
        ("int(2.0) + 1.", "double 3"),
    ]);
}

#[test]
fn comparisons_and_logic() {
    assert_values(&[
        ("1.0 = 0.0 and 1.0 != 0.0", "boolean false"),
        ("0 = 1 Or 1.0 = 1", "boolean true"),
        (
            "NOT (0 > 1) AND (1 <= 1) AND NOT (0 >= 1) AND (0 < 1) AND (NOT :f)",
            "boolean true",
        ),
        ("1 < 2 and 2 > 1 and 1 <> 2 and 2 >= 2", "boolean true"),
        ("case when 0 < 1 then 32 else 0 end", "int 32"),
        (
            "case when false THEN -1 when 1 = 1 then 13 + 19 + 2.0 end",
            "double 34",
        ),
        (
            "CASE WHEN NOT FALSE THEN 3 * 12.3333334 END",
            "double 37.0000002",
        ),
        (
            "case when false then 0 when 1-1 <> 0 then 1 else 38 end",
            "int 38",
        ),
        ("(case when :t then 1 else 2 end) + 3", "int 4"),
        ("1 + case when :f then 1 else 2 end * 10", "int 21"),
        (
            "CASE WHEN 1 THEN TRUE END AND CASE WHEN 1.0 THEN TRUE END",
            "boolean true",
        ),
        ("case when 0.0 then 1 when :n then 2 end", "null"),
        ("not not true", "boolean true"),
        ("not 1 = 2", "boolean true"),
        ("1 = 1 is true", "boolean true"),
        ("1 is null is false", "boolean true"),
        ("1 isnull < 2", "cannot coerce boolean to int"),
        ("- not 1 = 2", "cannot coerce boolean to int"),
        ("TRUE + 2", "cannot coerce boolean to int"),
        ("NOT 0.0", "cannot coerce double to boolean"),
        ("1 and true", "cannot coerce int to boolean"),
        ("true and 1", "cannot coerce int to boolean"),
        ("ln(TRUE)", "cannot coerce boolean to double"),
        ("1.5 + TRUE", "cannot coerce boolean to double"),
        ("random(FALSE, TRUE)", "cannot coerce boolean to int"),
        ("true = true", "cannot coerce boolean to int"),
    ]);
}

#[test]
fn null_propagates_except_in_tests_and_debug() {
    assert_values(&[
        ("NULL + NULL * exp(NULL)", "null"),
        (":n", "null"),
        ("NULL and false", "null"),
        ("false and NULL", "boolean false"),
        ("true and NULL", "null"),
        ("NULL or true", "null"),
        ("true or NULL", "boolean true"),
        ("not null", "null"),
        ("random(1, :n)", "null"),
        ("random_gaussian(5, 1, :n)", "null"),
        ("least(1, :n)", "null"),
        ("NULL is null", "boolean true"),
        ("NULL notnull", "boolean false"),
        (":n IS NOT NULL OR 1 IS NULL", "boolean false"),
        ("NOT NULL IS TRUE", "boolean true"),
        (
            "NULL IS NOT FALSE AND :t IS TRUE AND :t NOTNULL",
            "boolean true",
        ),
        ("1 is true", "boolean false"),
        ("debug(NULL) + 1", "null"),
    ]);
}

#[test]
fn unneeded_operands_are_not_evaluated() {
    assert_values(&[
        ("false and 1 / 0 = 1", "boolean false"),
        ("true or 1 / 0 = 1", "boolean true"),
        ("null and 1 / 0 = 1", "null"),
        ("case when :i = 3 then -1 else 1 / 0 end", "int -1"),
        (
            "case when :i = 3 or 1 / 0 < 0 then -1 else 1 / 0 end",
            "int -1",
        ),
        (
            "case when :i > 3 and 1 / 0 < 0 then 1 / 0 else 1 end",
            "int 1",
        ),
    ]);
    // The right operand of > is evaluated first, because pgbench swaps the operands.
    let order = run("\\set x debug(1) > debug(2) or debug(3) < debug(4)", &[]);
    let seen: Vec<_> = order
        .debugged
        .iter()
        .map(|line| line.chars().last().unwrap())
        .collect();
    assert_eq!(seen, ['2', '1', '3', '4']);
    // Sixteen arguments are evaluated before the seventeenth is too many.
    let many = format!("\\set x least({}, debug(17))", ["debug(1)"; 16].join(","));
    let outcome = run(&many, &[]);
    assert_eq!(outcome.debugged.len(), 16);
    let message = "too many function arguments, maximum is 16";
    assert_eq!(outcome.error.unwrap().1.to_string(), message);
}

#[test]
fn random_functions_check_their_arguments() {
    assert_values(&[
        ("random(5,3)", "empty range given to random"),
        (
            "random(-9223372036854775808, 9223372036854775807)",
            "random range is too large",
        ),
        (
            "random(0, 9223372036854775807)",
            "random range is too large",
        ),
        (
            "random_gaussian(0, 10, 1.0)",
            "gaussian parameter must be at least 2.000000 (not 1.000000)",
        ),
        (
            "random_exponential(0, 10, 0.0)",
            "exponential parameter must be greater than zero (not 0.000000)",
        ),
        (
            "random_zipfian(0, 10, 1)",
            "zipfian parameter must be in range [1.001, 1000] (not 1.000000)",
        ),
        (
            "random_zipfian(0, 10, 1000000)",
            "zipfian parameter must be in range [1.001, 1000] (not 1000000.000000)",
        ),
        (
            "permute(0, 0)",
            "permute size parameter must be greater than zero",
        ),
    ]);
}

#[test]
fn text_is_typed_when_it_is_read() {
    let cases = [
        ("010", "int 10"),
        (" -7", "int -7"),
        ("7 ", "malformed variable \"v\" value: \"7 \""),
        ("+", "invalid input syntax for type bigint: \"+\""),
        (
            "9223372036854775808",
            "value \"9223372036854775808\" is out of range for type bigint",
        ),
        ("-9223372036854775808", "int -9223372036854775808"),
        ("1e3", "double 1000"),
        (" .5", "double 0.5"),
        ("0x1A", "double 26"),
        ("-0x1.8p1", "double -3"),
        ("0xaP-1030", "double 8.69169475979376e-310"),
        ("0x0p9999", "double 0"),
        ("0x1p-1100", "malformed variable \"v\" value: \"0x1p-1100\""),
        ("0x", "malformed variable \"v\" value: \"0x\""),
        ("1e400", "malformed variable \"v\" value: \"1e400\""),
        ("1e-400", "malformed variable \"v\" value: \"1e-400\""),
        ("inf", "double Infinity"),
        ("-Infinity", "double -Infinity"),
        ("nan", "double NaN"),
        ("+-1.5", "malformed variable \"v\" value: \"+-1.5\""),
        ("tr", "boolean true"),
        ("YE", "boolean true"),
        ("on", "boolean true"),
        ("o", "malformed variable \"v\" value: \"o\""),
        ("of", "boolean false"),
        ("n", "boolean false"),
        ("trueXXX", "malformed variable \"v\" value: \"trueXXX\""),
        ("NuLl", "null"),
        ("", "malformed variable \"v\" value: \"\""),
    ];
    for (text, expected) in cases {
        assert_eq!(value(":v", &[("v", text)]), expected, "{text:?}");
    }
    assert_eq!(value(":nobody", &[]), "undefined variable \"nobody\"");
    // Reading it does not change its form in SQL; setting it does.
    let outcome = run(
        "\\set x :v + 1\nSELECT :v, :x;\n\\set v :v\nSELECT :v;",
        &[("v", "010")],
    );
    assert_eq!(outcome.sent, ["SELECT 010, 11;", "SELECT 10;"]);
}

#[test]
fn long_and_deep_expressions_evaluate() {
    let long = format!("0{}", " + :i".repeat(200_000));
    assert_eq!(value(&long, &[("i", "1")]), "int 200000");
    // Right-nested, so that the value stack grows with it.
    let deep = format!("{}:i{}", "1 + (".repeat(390), ")".repeat(390));
    assert_eq!(value(&deep, &[("i", "1")]), "int 391");
    let long_case = format!("case {} end", "when :i = 0 then 1 ".repeat(50_000));
    assert_eq!(value(&long_case, &[("i", "1")]), "null");
}
