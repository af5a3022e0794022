//! Reads a synthetic source tree, if universal-ctags is installed.

use std::fs;
use std::process::Command;

use pgassay_test_support::skip;
use xtask::source_tree;

fn write(root: &std::path::Path, path: &str, content: &str) {
    let file = root.join(path);
    let folder = file.parent().expect("the file is in a folder");
    fs::create_dir_all(folder).expect("the temporary tree is writable");
    fs::write(file, content).expect("the temporary tree is writable");
}

#[test]
fn finds_static_inline_and_grammar_functions_but_not_generated_copies() {
    if !source_tree::has_universal_ctags() {
        skip("a source tree", "universal-ctags is not installed");
        return;
    }
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    write(
        root,
        "src/backend/parser/gram.y",
        "%{\n#include \"postgres.h\"\n%}\n%%\nstmt: A { $$ = 1; }\n\t;\n%%\nstatic void\nbase_yyerror(void)\n{\n}\n\nstatic int\nmakeThing(int a)\n{\n\treturn a;\n}\n",
    );
    write(
        root,
        "src/backend/parser/gram.c",
        "static int\nmakeThing(int a)\n{\n\treturn a;\n}\n",
    );
    write(
        root,
        "src/backend/utils/adt/int.c",
        "#include \"postgres.h\"\nstatic int helper(void);\nDatum\nint4pl(PG_FUNCTION_ARGS)\n{\n\treturn helper();\n}\n\nstatic int\nhelper(void)\n{\n\treturn 1;\n}\n",
    );
    write(
        root,
        "src/include/utils/int.h",
        "static inline int\ntwice(int a)\n{\n\treturn 2 * a;\n}\nextern int nowhere(int);\n",
    );
    write(
        root,
        "src/bin/psql/main.c",
        "int\nnot_in_the_server(void)\n{\n\treturn 0;\n}\n",
    );
    let found = source_tree::functions(root).unwrap();
    let expected = [
        ("helper", "src/backend/utils/adt/int.c"),
        ("int4pl", "src/backend/utils/adt/int.c"),
        ("makeThing", "src/backend/parser/gram.y"),
        ("twice", "src/include/utils/int.h"),
    ];
    assert_eq!(
        found,
        expected.map(|(symbol, path)| (symbol.to_owned(), path.to_owned()))
    );

    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args([
            "symbols",
            root.to_str().unwrap(),
            "17",
            root.to_str().unwrap(),
            "18",
        ])
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.starts_with("symbol\tpath\tfirst_major\tlast_major\nhelper\t"),
        "{table}"
    );
    assert!(
        table.contains("twice\tsrc/include/utils/int.h\t17\t18\n"),
        "{table}"
    );
}

#[test]
fn folders_without_a_source_tree_are_rejected() {
    let empty = tempfile::tempdir().unwrap();
    let error = source_tree::functions(empty.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a PostgreSQL source tree"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("symbols")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
}
