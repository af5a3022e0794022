//! Connection options, and the environment variables for them.
//!
//! Source: `PQconninfoOptions` and `EnvironmentOptions` in `fe-connect.c`, PostgreSQL 18.

/// How an option is handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    /// It is implemented.
    Taken,
    /// It affects an unsupported feature, such as GSSAPI, and has no effect.
    Idle,
    /// It promises something that is not implemented: rejected if set.
    Refused,
}

/// A connection option.
pub(super) struct Keyword {
    pub name: &'static str,
    pub variable: Option<&'static str>,
    pub used: Support,
}

const fn keyword(name: &'static str, variable: &'static str, used: Support) -> Keyword {
    let variable = if variable.is_empty() {
        None
    } else {
        Some(variable)
    };
    Keyword {
        name,
        variable,
        used,
    }
}

use Support::{Idle, Refused, Taken};

/// Every option of libpq.
#[rustfmt::skip]
pub(super) const KEYWORDS: &[Keyword] = &[
    keyword("service", "PGSERVICE", Taken),
    keyword("servicefile", "PGSERVICEFILE", Taken),
    keyword("user", "PGUSER", Taken),
    keyword("password", "PGPASSWORD", Taken),
    keyword("passfile", "PGPASSFILE", Taken),
    keyword("dbname", "PGDATABASE", Taken),
    keyword("host", "PGHOST", Taken),
    keyword("hostaddr", "PGHOSTADDR", Taken),
    keyword("port", "PGPORT", Taken),
    keyword("connect_timeout", "PGCONNECT_TIMEOUT", Taken),
    keyword("client_encoding", "PGCLIENTENCODING", Taken),
    keyword("options", "PGOPTIONS", Taken),
    keyword("application_name", "PGAPPNAME", Taken),
    keyword("fallback_application_name", "", Taken),
    keyword("keepalives", "", Taken),
    keyword("keepalives_idle", "", Taken),
    keyword("keepalives_interval", "", Taken),
    keyword("keepalives_count", "", Taken),
    keyword("tcp_user_timeout", "", Taken),
    keyword("sslmode", "PGSSLMODE", Taken),
    keyword("gssencmode", "PGGSSENCMODE", Taken),
    keyword("channel_binding", "PGCHANNELBINDING", Taken),
    keyword("target_session_attrs", "PGTARGETSESSIONATTRS", Taken),
    keyword("load_balance_hosts", "PGLOADBALANCEHOSTS", Taken),
    keyword("sslnegotiation", "PGSSLNEGOTIATION", Taken),
    keyword("sslcompression", "PGSSLCOMPRESSION", Idle),
    keyword("sslcert", "PGSSLCERT", Taken),
    keyword("sslkey", "PGSSLKEY", Taken),
    keyword("sslcertmode", "PGSSLCERTMODE", Taken),
    keyword("sslpassword", "", Refused),
    keyword("sslrootcert", "PGSSLROOTCERT", Taken),
    keyword("sslcrl", "PGSSLCRL", Taken),
    keyword("sslcrldir", "PGSSLCRLDIR", Taken),
    keyword("sslsni", "PGSSLSNI", Taken),
    keyword("sslkeylogfile", "", Idle),
    keyword("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Taken),
    keyword("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Taken),
    keyword("krbsrvname", "PGKRBSRVNAME", Idle),
    keyword("gsslib", "PGGSSLIB", Idle),
    keyword("gssdelegation", "PGGSSDELEGATION", Idle),
    keyword("max_protocol_version", "PGMAXPROTOCOLVERSION", Idle),
    keyword("min_protocol_version", "PGMINPROTOCOLVERSION", Refused),
    keyword("requirepeer", "PGREQUIREPEER", Refused),
    keyword("require_auth", "PGREQUIREAUTH", Taken),
    keyword("replication", "", Refused),
    keyword("scram_client_key", "", Refused),
    keyword("scram_server_key", "", Refused),
    keyword("oauth_issuer", "", Refused),
    keyword("oauth_client_id", "", Refused),
    keyword("oauth_client_secret", "", Refused),
    keyword("oauth_scope", "", Refused),
];

/// Environment variables that become session settings.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("PGDATESTYLE", "datestyle"),
    ("PGTZ", "timezone"),
    ("PGGEQO", "geqo"),
];

pub(super) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}

/// Whether an option's value must not be displayed.
pub(super) fn has_secret_value(name: &str) -> bool {
    matches!(
        name,
        "password"
            | "sslpassword"
            | "scram_client_key"
            | "scram_server_key"
            | "oauth_client_secret"
    )
}
