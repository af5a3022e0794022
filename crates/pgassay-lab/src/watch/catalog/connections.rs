//! How many connections there are.

use pgassay_record::activity::ConnectionUse;

use super::reader::CatalogReader;
use super::settings::ServerSettings;

/// Whether a row of `pg_stat_activity` takes one of `max_connections`.
fn is_client(version: u32) -> &'static str {
    match version {
        // In the view are no background processes but autovacuum's workers.
        ..100_000 => "usesysid is not null and query not like 'autovacuum:%'",
        // The type is hidden for other users' sessions without pg_monitor; those that have a user are clients.
        100_000..120_000 => {
            "coalesce(backend_type in ('client backend', 'walsender'), usesysid is not null)"
        }
        // 12: WAL senders are not among max_connections.
        _ => "coalesce(backend_type = 'client backend', usesysid is not null)",
    }
}

/// Connections now, and how many of them started since the window's start, by the server's clock in
/// microseconds since 1970.
pub(super) fn connections(
    reader: &mut CatalogReader,
    settings: &ServerSettings,
    opened_us: f64,
) -> Option<ConnectionUse> {
    let is_client = is_client(reader.version);
    // Other users' states are hidden without pg_monitor; with track_activities off, they are not known.
    let sql = format!(
        "select count(*), case when not coalesce(bool_or( \
           query = '<insufficient privilege>' or state = 'disabled'), false) \
           then count(*) filter (where state = 'idle') end, \
         count(*) filter (where extract(epoch from backend_start) * 1e6 > {opened_us:.0}) \
         from pg_stat_activity where {is_client}"
    );
    let rows = reader.rows("connections", &sql)?;
    let row = rows.first()?;
    let setting = |name| settings.number(name).unwrap_or(0.0);
    let available = setting("max_connections")
        - setting("superuser_reserved_connections")
        // 16: for members of pg_use_reserved_connections.
        - setting("reserved_connections");
    Some(ConnectionUse {
        used: row.count(0) as u32,
        idle: row.get(1).map(|_| row.count(1) as u32),
        available: available.max(0.0) as u32,
        started_seen: row.count(2),
        brief_seen: None,
    })
}

#[cfg(test)]
mod tests {
    use super::is_client;

    /// Regression: before version 12, standbys took connections that were not counted.
    #[test]
    fn wal_senders_take_connections_before_version_12() {
        assert!(is_client(110_022).contains("walsender"));
        assert!(!is_client(120_022).contains("walsender"));
    }
}
