//! Writes the study that the flags of `pgassay compare` describe.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pgassay_model::plan::escaped;
use pgassay_model::study::{HumanDuration, Protocol, Variant};
use pgassay_profile::AwakeCpus;
use pgassay_script::{Builtin, SqlLexeme, lexemes};
use pgassay_wire::conninfo::split_secrets;
use toml::{Table, Value};

use super::CompareArgs;
use super::names::{make_distinct, names_of, names_of_setups, short};
use crate::command::choice::{mode, other, settings, variant};
use crate::command::tables::{TableChoice, sql_or_file, table};
use crate::input_file::read_text;
use crate::shell_word;

/// Measuring time without `--length`.
const LENGTH_DEFAULT: Duration = Duration::from_secs(30);

/// A script to run, and its name in reports.
pub struct NamedScript {
    pub name: String,
    /// Its text for a study, in which nothing is replaced.
    pub text: String,
    /// Whether the text is the name of one of pgbench's scripts.
    pub is_builtin: bool,
}

/// The question about these variants, the baseline first.
pub type AskedOf<'a> = &'a dyn Fn(&[&str]) -> String;

/// The text of the study, in TOML.
pub fn study_text(args: &CompareArgs, asked_of: AskedOf) -> Result<String> {
    let scripts = scripts(args)?;
    let variants = variants(args, &scripts)?;
    if variants.len() < 2 {
        bail!(
            "nothing to compare with: give a second statement or script, --vs, --vs-setup, --vs-dsn, or \
             several values for -M, --servers or --binaries"
        );
    }
    text_of(args, scripts, &variants, asked_of)
}

/// The text of the study, which may have a single variant.
pub fn study_text_of_any(args: &CompareArgs, asked_of: AskedOf) -> Result<String> {
    let scripts = scripts(args)?;
    let variants = variants(args, &scripts)?;
    text_of(args, scripts, &variants, asked_of)
}

fn text_of(
    args: &CompareArgs,
    scripts: Vec<NamedScript>,
    variants: &[Variant],
    asked_of: AskedOf,
) -> Result<String> {
    let mut study = Table::new();
    let names: Vec<&str> = variants.iter().map(|it| it.name.as_str()).collect();
    study.insert("question".to_owned(), asked_of(&names).into());
    if args.stepwise {
        study.insert("stepwise".to_owned(), true.into());
    }
    if keeps_cpus_awake(args) {
        study.insert("keep_cpus_awake".to_owned(), true.into());
    }
    study.insert("server".to_owned(), server(args)?.into());
    let exist = args.dsn.is_some() && !has_builtin(&scripts);
    let tables = TableChoice::chosen(&args.setup, args.scale, exist)?;
    if tables == TableChoice::Existing && !args.vs_setup.is_empty() {
        bail!(
            "--vs-setup would change tables of the database that --dsn names, and pgassay changes only databases \
             that it creates: give --setup, which creates the tables there, or -s for pgbench's tables"
        );
    }
    let reset = args
        .reset
        .as_deref()
        .map(|it| reset(it, &tables))
        .transpose()?;
    tables.add_to(&mut study, reset);
    let clients: Vec<Value> = args.clients.iter().map(|&it| it.into()).collect();
    study.insert(
        "conditions".to_owned(),
        table([("clients", clients.into())]),
    );
    let mut length = vec![
        ("full", Value::from(length(args).to_string())),
        ("threads", args.jobs.into()),
    ];
    length.extend(args.pairs.map(|pairs| ("pairs", pairs.into())));
    let half_width = args.half_width.map(|it| it.to_string());
    length.extend(half_width.map(|it| ("half_width", it.into())));
    study.insert("length".to_owned(), table(length));
    let scripts = scripts.into_iter().map(|script| {
        let key = if script.is_builtin { "builtin" } else { "text" };
        table([("name", script.name.into()), (key, script.text.into())])
    });
    study.insert("script".to_owned(), scripts.collect::<Vec<_>>().into());
    let variants: Result<Vec<Value>, _> = variants.iter().map(Value::try_from).collect();
    study.insert("variant".to_owned(), variants?.into());
    Ok(toml::to_string(&study)?)
}

/// The SQL that restores what the statements change.
fn reset(given: &str, tables: &TableChoice) -> Result<String> {
    if is_empty(given) {
        bail!("--reset is empty: give SQL, or a file");
    }
    if *tables == TableChoice::Existing {
        bail!(
            "--reset would change tables of the database that --dsn names, and pgassay changes only databases that it \
             creates: give --setup, which creates the tables there, or -s for pgbench's tables"
        );
    }
    sql_or_file("--reset", given)
}

/// Whether one of the scripts is pgbench's, which needs pgbench's tables.
pub fn has_builtin(scripts: &[NamedScript]) -> bool {
    scripts.iter().any(|it| it.is_builtin)
}

/// Whether idle CPUs are kept awake. A server that runs already may share its machine with others, so
/// only an option changes that machine.
fn keeps_cpus_awake(args: &CompareArgs) -> bool {
    let runs_already = args.dsn.is_some() || !args.vs_dsn.is_empty();
    let by_default = || !runs_already && AwakeCpus::is_permitted();
    args.idle_cpus.are_kept_awake().unwrap_or_else(by_default)
}

/// The baseline's server, with the settings of all variants.
fn server(args: &CompareArgs) -> Result<Table> {
    let mut server = Table::new();
    if let Some(dsn) = &args.dsn {
        server.insert("dsn".to_owned(), dsn.as_str().into());
    } else if let Some(directory) = args.binaries.first() {
        server.insert("binaries".to_owned(), absolute(directory)?.into());
    } else {
        let version = args.servers.first().map_or("18", String::as_str);
        server.insert("version".to_owned(), version.into());
    }
    let settings = settings("--set", &args.set)?;
    // Those of a running server are set for sessions, of all variants.
    if !settings.is_empty() && args.dsn.is_none() {
        server.insert("settings".to_owned(), Value::try_from(settings)?);
    }
    Ok(server)
}

/// A directory as the saved study can name it from anywhere.
pub fn absolute(directory: &str) -> Result<String> {
    if directory.is_empty() {
        bail!("--binaries: one of the directories is empty");
    }
    let path = std::path::absolute(directory)
        .with_context(|| format!("--binaries {directory}: not a path"))?;
    Ok(path.display().to_string())
}

/// The scripts in the order of the command line: the first is the baseline.
fn scripts(args: &CompareArgs) -> Result<Vec<NamedScript>> {
    let select_only = args.select_only.then_some("select-only");
    let simple_update = args.skip_some_updates.then_some("simple-update");
    let builtins = args.builtin.iter().map(String::as_str);
    let builtins: Vec<&str> = builtins.chain(select_only).chain(simple_update).collect();
    let scripts = named_scripts(&args.sql, &args.file, &builtins)?;
    if args.positions.len() != scripts.len() {
        return Ok(scripts);
    }
    let mut placed: Vec<_> = args.positions.iter().zip(scripts).collect();
    placed.sort_by_key(|(position, _)| **position);
    Ok(placed.into_iter().map(|(_, script)| script).collect())
}

/// A parameter such as `$1` of a query, as it is copied from `pg_stat_statements` or a driver's log. Other commands can
/// have them: PREPARE, and CREATE FUNCTION.
fn open_parameter(sql: &str) -> Option<&str> {
    const QUERIES: [&str; 7] = [
        "select", "insert", "update", "delete", "merge", "with", "values",
    ];
    let mut words = lexemes(sql).filter(|(lexeme, _)| *lexeme == SqlLexeme::Word);
    let (_, command) = words.next()?;
    let mut all = lexemes(sql).filter(|_| QUERIES.contains(&&*command.to_lowercase()));
    let parameter = all.find(|(lexeme, _)| *lexeme == SqlLexeme::Parameter);
    parameter.map(|(_, text)| text)
}

/// Whether a text has nothing that a server executes, and no meta-command.
fn is_empty(sql: &str) -> bool {
    lexemes(sql).all(|(lexeme, text)| lexeme == SqlLexeme::Blank || text == ";")
}

/// Whether a text is the name of a file and no statement, such as `s.sql`. Of statements without a blank, all are a word
/// or have parentheses or quotes.
fn names_file(sql: &str) -> bool {
    let is_name = |it: char| it.is_alphanumeric() || "._-/".contains(it);
    let is_no_word = sql.contains(['.', '/']);
    is_no_word && sql.chars().all(is_name) && Path::new(sql).is_file()
}

/// Scripts with different names, from statements, files, and names of pgbench's scripts.
pub fn named_scripts(
    sql: &[String],
    files: &[PathBuf],
    builtins: &[&str],
) -> Result<Vec<NamedScript>> {
    let mut scripts = Vec::new();
    if sql.iter().any(|sql| is_empty(sql)) {
        bail!("a statement is empty, or a comment only");
    }
    for sql in sql {
        if names_file(sql) {
            let path = shell_word::quoted(sql);
            bail!(
                "{sql} is not a statement, but a file of that name exists; to run it, use -f {path}"
            );
        }
        if let Some(parameter) = open_parameter(sql) {
            bail!(
                "{}: {parameter} has no value: write one in its place, or give a script (-f FILE) that sets a variable, \
                 such as \\set id random(1, 1000), and uses it as :id",
                short(sql)
            );
        }
    }
    for (sql, name) in sql.iter().zip(names_of(sql)) {
        scripts.push(NamedScript {
            name,
            text: escaped(&terminated(sql.trim().trim_end_matches(';'))),
            is_builtin: false,
        });
    }
    for path in files {
        let text = read_text(path).with_context(|| unreadable(path))?;
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        scripts.push(NamedScript {
            name: stem.to_string_lossy().into_owned(),
            text: escaped(&text),
            is_builtin: false,
        });
    }
    for name in builtins {
        let builtin = Builtin::find(name)?;
        scripts.push(NamedScript {
            name: builtin.name.to_owned(),
            text: builtin.name.to_owned(),
            is_builtin: true,
        });
    }
    make_distinct(scripts.iter_mut().map(|script| &mut script.name));
    if scripts.is_empty() {
        bail!("nothing to run: give a statement, -f FILE, -b NAME, -S or -N");
    }
    Ok(scripts)
}

/// The text of a script from a statement. A meta-command, which may follow a statement, ends with its line; a statement
/// ends with a semicolon, or the text.
fn terminated(sql: &str) -> String {
    let last_line = sql.lines().last().unwrap_or_default();
    let end = if last_line.contains('\\') { "" } else { ";" };
    format!("{sql}{end}\n")
}

/// Why a script file cannot be read: a weight, which pgbench's `-f` takes, may be the reason.
fn unreadable(path: &Path) -> String {
    let path = path.display().to_string();
    let weighted = path.rsplit_once('@');
    let hint = match weighted.filter(|(file, _)| Path::new(file).is_file()) {
        Some(_) => {
            ": each script is a separate variant without a weight; a study can mix scripts by weight"
        }
        None => "",
    };
    format!("cannot read the script {path}{hint}")
}

/// The baseline and the variants, with different names.
fn variants(args: &CompareArgs, scripts: &[NamedScript]) -> Result<Vec<Variant>> {
    let protocol = args.protocol.first().copied().unwrap_or_default();
    // With several scripts, each variant names its own; a single one needs no name.
    let first_script = scripts.get(1).map(|_| scripts[0].name.clone());
    let with = |name: &str| Variant {
        script: first_script.clone(),
        ..variant(name, protocol)
    };
    let mut all = vec![with(&baseline_name(args, scripts, protocol))];
    for script in &scripts[1..] {
        all.push(Variant {
            script: Some(script.name.clone()),
            ..with(&script.name)
        });
    }
    for mode in args.protocol.iter().skip(1) {
        all.push(Variant {
            protocol: Some(*mode),
            ..with(mode.as_str())
        });
    }
    for version in args.servers.iter().skip(1) {
        all.push(Variant {
            version: Some(version.clone()),
            ..with(version)
        });
    }
    for directory in args.binaries.iter().skip(1) {
        all.push(Variant {
            binaries: Some(absolute(directory)?),
            ..with(directory)
        });
    }
    if args.dsn.is_none() && !args.vs_dsn.is_empty() {
        bail!("--vs-dsn requires --dsn, which names the baseline's server");
    }
    for dsn in &args.vs_dsn {
        all.push(Variant {
            dsn: Some(dsn.clone()),
            ..with(&split_secrets(dsn)?.0)
        });
    }
    for choice in &args.vs {
        let mut chosen = other(choice, protocol)?;
        if args.dsn.is_some() && chosen.version.is_some() {
            bail!(
                "--vs {choice} is a release, and --dsn a server that runs: to compare two servers, use --vs-dsn"
            );
        }
        chosen.script.clone_from(&first_script);
        if args.dsn.is_some() {
            // Settings of a running server are not changed; those of a session can be.
            chosen.session = std::mem::take(&mut chosen.settings);
        }
        all.push(chosen);
    }
    for (setup, name) in args.vs_setup.iter().zip(names_of_setups(&args.vs_setup)) {
        all.push(Variant {
            setup: Some(further_setup(setup)?),
            ..with(&name)
        });
    }
    make_distinct(all.iter_mut().map(|variant| &mut variant.name));
    if args.dsn.is_some() {
        set_for_sessions(&mut all, &args.set)?;
    }
    Ok(all)
}

fn length(args: &CompareArgs) -> HumanDuration {
    args.length
        .unwrap_or_else(|| HumanDuration::from(LENGTH_DEFAULT))
}

fn further_setup(setup: &str) -> Result<String> {
    if is_empty(setup) {
        bail!("--vs-setup is empty: give SQL, or a file");
    }
    sql_or_file("--vs-setup", setup)
}

/// Settings of all variants, for their sessions only: those of a running server are not changed.
fn set_for_sessions(all: &mut [Variant], set: &[String]) -> Result<()> {
    let for_all = settings("--set", set)?;
    for variant in all {
        for (name, value) in &for_all {
            let mut of_variant = variant.session.keys();
            if !of_variant.any(|it| it.eq_ignore_ascii_case(name)) {
                variant.session.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(())
}

/// What distinguishes the baseline, if only one kind of choice is varied.
fn baseline_name(args: &CompareArgs, scripts: &[NamedScript], protocol: Protocol) -> String {
    let version = args.servers.first().map_or("18", String::as_str).to_owned();
    let is_version = |choice: &String| choice.starts_with(|it: char| it.is_ascii_digit());
    let of_versions = args.vs.iter().all(is_version);
    let word = |it: &String| it.trim_start_matches("protocol=").to_owned();
    let of_protocols = args.vs.iter().all(|it| mode(&word(it)).is_some());
    // Settings that all variants share distinguish none.
    let name = |choice: &str| choice.split_once('=').map(|it| it.0.trim().to_lowercase());
    let varied: Vec<_> = args.vs.iter().filter_map(|it| name(it)).collect();
    let is_varied = |it: &&String| name(it).is_some_and(|name| varied.contains(&name));
    let settings: Vec<&str> = args
        .set
        .iter()
        .filter(is_varied)
        .map(String::as_str)
        .collect();
    let settings = if settings.is_empty() {
        "default".to_owned()
    } else {
        settings.join(", ")
    };
    let vs = match () {
        () if args.vs.is_empty() => None,
        () if of_versions && args.binaries.is_empty() => Some(version.clone()),
        () if of_protocols => Some(protocol.as_str().to_owned()),
        () => Some(settings),
    };
    let dsn = args.dsn.as_deref().unwrap_or_default();
    let dsn = split_secrets(dsn).map(|(shown, _)| shown);
    let kinds = [
        scripts.get(1).map(|_| scripts[0].name.clone()),
        args.protocol.get(1).map(|_| protocol.as_str().to_owned()),
        args.servers.get(1).map(|_| version),
        args.binaries.get(1).map(|_| args.binaries[0].clone()),
        args.vs_dsn.first().and(dsn.ok()),
        vs,
        args.vs_setup.first().map(|_| "setup only".to_owned()),
    ];
    let mut varied = kinds.into_iter().flatten();
    match (varied.next(), varied.next()) {
        (Some(only), None) => only,
        _ => "baseline".to_owned(),
    }
}

/// What to say of a chain of variants of several kinds: each differs from the baseline in one choice, so the first
/// of another kind differs from the one before it in two.
pub fn note_on_chain(args: &CompareArgs) -> Option<String> {
    let is_protocol = |it: &String| mode(it).is_some();
    let is_release = |it: &String| it.starts_with(|it: char| it.is_ascii_digit());
    let kinds = [
        ("scripts", scripts(args).is_ok_and(|it| it.len() > 1)),
        (
            "protocols",
            args.protocol.len() > 1 || args.vs.iter().any(is_protocol),
        ),
        (
            "releases",
            args.servers.len() > 1 || args.vs.iter().any(is_release),
        ),
        ("builds", args.binaries.len() > 1),
        ("running servers", !args.vs_dsn.is_empty()),
        (
            "settings",
            args.vs.iter().any(|it| !is_protocol(it) && !is_release(it)),
        ),
        ("setups", !args.vs_setup.is_empty()),
    ];
    let varied = kinds.into_iter().filter(|(_, is_varied)| *is_varied);
    let varied: Vec<&str> = varied.map(|(kind, _)| kind).collect();
    (args.stepwise && varied.len() > 1).then(|| {
        format!(
            "--stepwise compares each variant with the one before; where {} change into each other, the two \
             differ in more than one choice",
            varied.join(" and ")
        )
    })
}

/// Which of these variants is faster.
pub fn which_is_faster(names: &[&str]) -> String {
    match names {
        [only] => format!("What does \"{only}\" cost?"),
        [first, second] => format!("Is \"{second}\" faster than \"{first}\"?"),
        _ => format!("Which is the fastest: \"{}\"?", names.join("\", \"")),
    }
}

#[cfg(test)]
mod tests {
    use pgassay_script::{ParseOptions, ParsedScript, VariableNames};

    use super::*;

    #[test]
    fn a_parameter_of_a_query_is_found_and_one_of_another_command_is_not() {
        assert_eq!(
            open_parameter("select a from t where b = $2::int"),
            Some("$2")
        );
        for sql in [
            "select '$1', \"$1\", $$ $1 $$ -- $1",
            "prepare p as select $1",
            "create function f(int) returns int return $1 + 1",
        ] {
            assert_eq!(open_parameter(sql), None, "{sql}");
        }
    }

    /// Regression: `compare s.sql t.sql` without -f ended in `syntax error at or near "s"`.
    #[test]
    fn the_name_of_a_file_is_no_statement() {
        let directory = std::env::temp_dir().join(format!("pgassay-named-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("s.sql");
        std::fs::write(&file, "select 1;").unwrap();
        let name = file.to_str().unwrap().to_owned();
        let of = |sql: &str| named_scripts(&[sql.to_owned()], &[], &[]);
        let error = of(&name).map(|_| ()).unwrap_err().to_string();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(
            error.ends_with(&format!("to run it, use -f {name}")),
            "{error}"
        );
        assert!(of(&name).is_ok(), "no such file");
    }

    /// Regression: `select 1 as x \gset` became `\gset;`, which is no command.
    #[test]
    fn a_statement_that_ends_with_a_meta_command_gets_no_semicolon() {
        for (sql, expected) in [
            ("select 1 as x \\gset", "select 1 as x \\gset\n"),
            ("select 1\n\\sleep 1 ms", "select 1\n\\sleep 1 ms\n"),
            ("\\set a 1\nselect :a", "\\set a 1\nselect :a;\n"),
            ("select '\\d'", "select '\\d'\n"),
        ] {
            let scripts = named_scripts(&[sql.to_owned()], &[], &[]).unwrap();
            assert_eq!(scripts[0].text, expected);
            let names = &mut VariableNames::new();
            ParsedScript::parse("s", expected, &ParseOptions::default(), names).unwrap();
        }
    }

    /// Regression: `compare '-- x' 'select 1' --save` wrote a study whose first script does nothing.
    #[test]
    fn a_comment_is_no_statement() {
        for sql in ["", " ;; ", "-- x", "/* x */ ;", "-- x\n;\n"] {
            assert!(is_empty(sql), "{sql}");
        }
        for sql in ["select 1", "-- x\nselect 1", "\\set k 1", "'a'"] {
            assert!(!is_empty(sql), "{sql}");
        }
    }

    /// Regression: "--binaries : not a path: cannot make an empty path absolute".
    #[test]
    fn an_empty_directory_of_a_list_is_named() {
        let error = absolute("").map(drop).expect_err("`--binaries A,`");
        assert!(
            error
                .to_string()
                .contains("one of the directories is empty")
        );
    }
}
