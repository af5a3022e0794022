//! Connection strings, URIs, the environment, service and password files: pgassay connects if and
//! only if psql does, and to the same server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pgassay_test_support::BareServer;

use crate::connecting::{ProcessEnvironment, compare, psql_major};

const HBA: &str = "\
local all all trust
host all secretive 127.0.0.1/32 scram-sha-256
host all,postgres all 127.0.0.1/32 trust
";

/// A connection string with `{port}`, `{socket}`, `{other}` (an unused port) and `{home}`;
/// environment variables; and the expected result: user, database and more of the answer, or a part
/// of pgassay's error.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Result<&'static str, &'static str>,
);

const TCP: &[(&str, &str)] = &[("PGHOST", "127.0.0.1"), ("PGPORT", "{port}")];
const TESTER: &[(&str, &str)] = &[
    ("PGHOST", "127.0.0.1"),
    ("PGPORT", "{port}"),
    ("PGUSER", "tester"),
    ("PGDATABASE", "postgres"),
];
const SERVICE: &[(&str, &str)] = &[("PGSERVICE", "there")];

#[rustfmt::skip]
const STRINGS: &[Case] = &[
    ("host=127.0.0.1 port={port} user=tester dbname=postgres", &[], Ok("127.0.0.1 {port} tester postgres")),
    ("host={socket} port={port} user=tester dbname=postgres", &[], Ok("socket {port} tester postgres")),
    ("host = '127.0.0.1'  port= {port} user =tester dbname = 'postgres' ", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 port={port} user='odd \\'user\\\\' dbname=postgres", &[], Ok("odd 'user\\ postgres")),
    ("host=127.0.0.1 port={port} user=odd\\ \\'user\\\\ dbname=postgres", &[], Ok("odd 'user\\ postgres")),
    ("host=127.0.0.1 port={port} user=tester dbname='a b'", &[], Ok("tester a b")),
    ("host=127.0.0.1 port={port} user=tester", &[], Ok("tester tester")),
    ("hostaddr=127.0.0.1 port={port} user=tester dbname=postgres", &[], Ok("127.0.0.1")),
    ("host=nowhere.invalid hostaddr=127.0.0.1 port={port} user=tester dbname=postgres", &[], Ok("127.0.0.1")),
    ("host=nowhere.invalid port={port} user=tester dbname=postgres", &[], Err("")),
    ("host=127.0.0.1 port=1 port={port} user=tester dbname=postgres", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres application_name=x", &[], Ok(" x ")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres options='-c geqo=off -c work_mem=5MB'", &[], Ok("off 5MB")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres options='-c geqo=maybe'", &[], Err("geqo")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres client_encoding=LATIN1", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 port={port} user=tester dbname=nowhere", &[], Err("\"nowhere\" does not exist")),
    ("host=127.0.0.1 port={port} user=nobody dbname=postgres", &[], Err("\"nobody\" does not exist")),
    ("host=127.0.0.1 port={other} user=tester dbname=postgres", &[], Err("refused")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres", &[], Err("password")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres password=open", &[], Ok("secretive")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres password=shut", &[], Err("password")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres password=''", &[], Err("password")),
    ("postgres", TESTER, Ok("tester postgres")),
    ("", TESTER, Ok("tester postgres")),
    ("postgresql://tester@127.0.0.1:{port}/postgres", &[], Ok("127.0.0.1 {port} tester postgres")),
    ("postgres://tester@127.0.0.1:{port}/postgres?application_name=a%26b", &[], Ok(" a&b ")),
    ("postgresql://secretive:open@127.0.0.1:{port}/postgres", &[], Ok("secretive")),
    ("postgresql://secretive:%6fpen@127.0.0.1:{port}/postgres", &[], Ok("secretive")),
    ("postgresql://127.0.0.1:{port}/a%20b?user=tester", &[], Ok("tester a b")),
    ("postgresql:///postgres?host=127.0.0.1&port={port}&user=tester", &[], Ok("127.0.0.1")),
    ("postgresql://tester@/postgres?host={socket}&port={port}", &[], Ok("socket")),
    ("postgresql://tester@127.0.0.1:{port}", &[], Ok("tester tester")),
    ("postgresql://tester@127.0.0.1:{port}/", &[], Ok("tester tester")),
    ("postgresql://tester@127.0.0.1:{port}/postgres?options=-c%20work_mem%3D6MB", &[], Ok("6MB")),
    ("postgresql://odd%20%27user%5C@127.0.0.1:{port}/postgres", &[], Ok("odd 'user\\")),
];

#[rustfmt::skip]
const AROUND: &[Case] = &[
    ("user=tester dbname=postgres", TCP, Ok("127.0.0.1")),
    ("postgresql://", TESTER, Ok("127.0.0.1 {port} tester postgres")),
    ("", &[("PGHOSTADDR", "127.0.0.1"), ("PGPORT", "{port}"), ("PGUSER", "tester")], Ok("tester tester")),
    ("dbname=postgres user=tester", &[("PGHOST", "{socket}"), ("PGPORT", "{port}")], Ok("socket")),
    ("host='' port={port} user=tester dbname=postgres", TESTER, Err("")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres", &[("PGAPPNAME", "named"), ("PGTZ", "Asia/Tokyo"), ("PGGEQO", "off"), ("PGOPTIONS", "-c work_mem=7MB")], Ok("named Asia/Tokyo off 7MB")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres", &[("PGGEQO", "default")], Ok(" on ")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres", &[("PGREQUIRESSL", "1")], Err("SSL")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres", &[("PGPASSWORD", "open")], Ok("secretive")),
    // The password file, including one that must not be read.
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres", &[("PGPASSFILE", "{home}/pass")], Ok("secretive")),
    ("host=127.0.0.1 port={port} user=secretive dbname='a b'", &[("PGPASSFILE", "{home}/pass")], Err("password")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres passfile={home}/pass", &[], Ok("secretive")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres passfile={home}/open", &[], Err("password")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres passfile={home}/none", &[], Err("password")),
    ("host=127.0.0.1 port={port} user=secretive dbname=postgres passfile={home}/pass password=shut", &[], Err("password")),
    // Services.
    ("", SERVICE, Ok("127.0.0.1 {port} tester postgres f served")),
    ("service=there", &[], Ok("served")),
    ("service=there application_name=mine", &[], Ok("mine")),
    ("service=there", &[("PGAPPNAME", "env"), ("PGUSER", "nobody")], Ok("tester postgres f served")),
    ("postgresql://?service=there", &[], Ok("served")),
    ("service=nowhere", &[], Err("\"nowhere\" not found")),
    ("service=broken", &[], Err("prot")),
    ("service=nested", &[], Err("nested")),
    ("service=there", &[("PGSERVICEFILE", "{home}/none")], Err("not found")),
    ("service=system", &[("PGSYSCONFDIR", "{home}/etc")], Ok("tester postgres f system")),
    // Several hosts.
    ("host=127.0.0.1,127.0.0.1 port={other},{port} user=tester dbname=postgres", &[], Ok("{port}")),
    ("host=nowhere.invalid,127.0.0.1 port={port} user=tester dbname=postgres", &[], Ok("{port}")),
    ("host={home},127.0.0.1,{socket} port={port} user=tester dbname=postgres", &[], Ok("127.0.0.1 {port}")),
    ("hostaddr=127.0.0.1,127.0.0.1 port={other},{port} user=tester dbname=postgres", &[], Ok("{port}")),
    ("postgresql://tester@127.0.0.1:{other},127.0.0.1:{port}/postgres", &[], Ok("{port}")),
    ("host=127.0.0.1,127.0.0.1 port={other} user=tester dbname=postgres", &[], Err("")),
    ("host=127.0.0.1,127.0.0.1 port={port},{port} user=nobody dbname=postgres", &[], Err("")),
    ("host=127.0.0.1,127.0.0.1 port=1,2,3 user=tester dbname=postgres", &[], Err("3 values of \"port\"")),
    ("hostaddr=127.0.0.1,::1 host=a user=tester", &[], Err("2 values of \"hostaddr\"")),
];

#[rustfmt::skip]
const BAD: &[Case] = &[
    ("host=127.0.0.1 prot=1", &[], Err("invalid connection option \"prot\"")),
    ("host=127.0.0.1 port", &[], Err("\"=\"")),
    ("host='127.0.0.1", &[], Err("closing quote")),
    ("host=127.0.0.1 port=x user=tester", &[], Err("\"port\"")),
    ("host=127.0.0.1 port=0 user=tester", &[], Err("65535")),
    ("host=127.0.0.1 port=65536 user=tester", &[], Err("65535")),
    ("host=127.0.0.1 port={port} connect_timeout=soon user=tester dbname=postgres", &[], Err("integer")),
    ("host=127.0.0.1 port={port} connect_timeout=' 7 ' user=tester dbname=postgres", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 port={port} keepalives=0 keepalives_idle=5 user=tester dbname=postgres", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 port={port} keepalives_idle=x user=tester dbname=postgres", &[], Err("integer")),
    ("hostaddr=localhost port={port} user=tester", &[], Err("IPv4")),
    ("host=127.0.0.1 sslmode=sometimes", &[], Err("verify-full")),
    ("host=127.0.0.1 target_session_attrs=best", &[], Err("prefer-standby")),
    ("host=127.0.0.1 channel_binding=always", &[], Err("require")),
    ("host=127.0.0.1 port={port} user=tester dbname=postgres gssencmode=disable", &[], Ok("127.0.0.1")),
    ("host=127.0.0.1 gssencmode=perhaps", &[], Err("gssencmode")),
    ("postgresql://[::1", &[], Err("\"]\"")),
    ("postgresql://[]", &[], Err("empty")),
    ("postgresql://[::1]z", &[], Err("after an IPv6")),
    ("postgresql://127.0.0.1:{port}/postgres?user", &[], Err("no \"=\"")),
    ("postgresql://127.0.0.1:{port}/postgres?user=a=b", &[], Err("second")),
    ("postgresql://127.0.0.1:{port}/postgres?prot=1", &[], Err("\"prot\"")),
    ("postgresql://tester%@127.0.0.1:{port}/postgres", &[], Err("hexadecimal")),
    ("postgresql://tester%zz@127.0.0.1:{port}/postgres", &[], Err("hexadecimal")),
    ("postgresql://tester%00@127.0.0.1:{port}/postgres", &[], Err("%00")),
    ("postgresql://127.0.0.1:{port}/postgres?ssl=true&user=tester", &[], Err("SSL")),
    ("postgresql://127.0.0.1:{port}/postgres?ssl=maybe&user=tester", &[], Err("\"ssl\"")),
];

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn connection_parameters_against_the_real_psql() {
    if psql_major("connection parameters against the real psql").is_none() {
        return;
    }
    let Some(server) = BareServer::start_with_tcp(HBA) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let port = server.port();
    // No outgoing connection of another test can have it.
    let other = 1;
    let filled = |text: &str| {
        text.replace("{port}", &port.to_string())
            .replace("{other}", &other.to_string())
            .replace("{socket}", server.socket_directory().to_str().unwrap())
            .replace("{home}", home.path().to_str().unwrap())
    };
    let local = filled("host={socket} port={port} user=tester dbname=postgres");
    let around = |variables: &[(&str, &str)]| ProcessEnvironment {
        variables: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), filled(value)))
            .collect(),
        home: home.path().to_owned(),
    };
    let mut setup = crate::connecting::connect(&local, &around(&[])).unwrap();
    for sql in [
        "create role secretive login password 'open'",
        "create role \"odd 'user\\\" login",
        "create database tester",
        "create database \"a b\"",
    ] {
        setup.query(sql).unwrap();
    }
    let pass = filled("# mine\n127.0.0.1:{port}:postgres:secretive:open\n*:*:*:*:shut\n");
    write(&home.path().join("pass"), &pass, 0o600);
    write(&home.path().join("open"), &pass, 0o640);
    let there = "host=127.0.0.1\nport={port}\nuser=tester\ndbname=postgres\n";
    let services = format!(
        "# mine\n[there]\n{there}application_name=served\n\n[broken]\nprot=1\n[nested]\nservice=there\n"
    );
    write(
        &home.path().join(".pg_service.conf"),
        &filled(&services),
        0o644,
    );
    std::fs::create_dir(home.path().join("etc")).unwrap();
    let system = format!("[system]\n{there}application_name=system\n");
    write(
        &home.path().join("etc/pg_service.conf"),
        &filled(&system),
        0o644,
    );

    let mut wrong = Vec::new();
    for (text, variables, expected) in STRINGS.iter().chain(AROUND).chain(BAD) {
        let came = compare(&filled(text), &around(variables));
        let is_right = match (expected, &came) {
            (Ok(part), Ok(who)) => who.contains(&filled(part)),
            (Err(part), Err(error)) => error.contains(part),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{text} {variables:?}: {came:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
