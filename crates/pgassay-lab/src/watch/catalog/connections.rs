//! How many connections there are.

use pgassay_record::activity::ConnectionUse;

use super::reader::CatalogReader;
use super::settings::ServerSettings;

/// Connections now, and how many of them started since the window's start, by the server's clock in
/// microseconds since 1970.
pub(super) fn connections(
    reader: &mut CatalogReader,
    settings: &ServerSettings,
    opened_us: f64,
) -> Option<ConnectionUse> {
    // 10: backend_type, and background processes in the view.
    let is_client = if reader.version >= 100_000 {
        // Hidden for other users' sessions without pg_monitor; those that have a user are clients.
        "coalesce(backend_type = 'client backend', usesysid is not null)"
    } else {
        "usesysid is not null and query not like 'autovacuum:%'"
    };
    let sql = format!(
        "select count(*), count(*) filter (where state = 'idle'), \
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
        idle: row.count(1) as u32,
        available: available.max(0.0) as u32,
        started_seen: row.count(2),
    })
}
