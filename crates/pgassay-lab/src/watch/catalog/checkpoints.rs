//! Differences of the counters of checkpoints.

use pgassay_record::activity::CheckpointActivity;

use super::counts::counted;
use super::reader::CatalogReader;
use super::slots::wal_since;

/// The counters at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckpointReading {
    /// Timed, requested, write and sync time in microseconds, buffers written.
    counters: [u64; 5],
    /// Buffers by backends, and through ring buffers: from 16 on of another view, which has another reset.
    by_backends: [u64; 2],
    /// Those through ring buffers are counted.
    has_rings: bool,
    /// WAL written or, on a standby, replayed since the server was initialized, in bytes.
    wal_bytes: Option<u64>,
}

/// Writes of client backends and their parallel workers in contexts of `pg_stat_io`. Extending a
/// relation is no write.
fn writes_in(contexts: &str, written: &str) -> String {
    format!(
        "(select coalesce(sum({written}), 0)::bigint from pg_stat_io \
         where object = 'relation' and context {contexts} \
           and backend_type in ('client backend', 'background worker'))"
    )
}

/// Writes to get a free buffer, and writes to reuse a buffer of a ring.
fn backend_writes(written: &str) -> String {
    let rings = "in ('bulkread', 'bulkwrite', 'vacuum')";
    let (normal, rings) = (writes_in("= 'normal'", written), writes_in(rings, written));
    format!("{normal}, {rings}")
}

impl CheckpointReading {
    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let wal = wal_since(reader.version, "'0/0'");
        let sql = match reader.version {
            ..160_000 => format!(
                "select checkpoints_timed, checkpoints_req, (checkpoint_write_time * 1e3)::bigint, \
                 (checkpoint_sync_time * 1e3)::bigint, buffers_checkpoint, buffers_backend, null, \
                 {wal} from pg_stat_bgwriter"
            ),
            // 16: writes of backends in pg_stat_io. Those through ring buffers, as of COPY, VACUUM and
            // large scans, have contexts other than normal.
            160_000..170_000 => format!(
                "select checkpoints_timed, checkpoints_req, (checkpoint_write_time * 1e3)::bigint, \
                 (checkpoint_sync_time * 1e3)::bigint, buffers_checkpoint, {}, {wal} from pg_stat_bgwriter",
                backend_writes("writes")
            ),
            // 17: a view for checkpoints. A standby counts its restartpoints in columns of their own; in the sum,
            // a promotion within the window does no harm.
            version => {
                // 18: bytes instead of blocks, since one write can have several blocks.
                let written = if version >= 180_000 {
                    "write_bytes / current_setting('block_size')::bigint"
                } else {
                    "writes"
                };
                format!(
                    "select num_timed + restartpoints_timed, num_requested + restartpoints_req, \
                     (write_time * 1e3)::bigint, (sync_time * 1e3)::bigint, buffers_written, \
                     {}, {wal} from pg_stat_checkpointer",
                    backend_writes(written)
                )
            }
        };
        let rows = reader.rows("checkpoints", &sql)?;
        let row = rows.first()?;
        Some(Self {
            counters: std::array::from_fn(|at| row.count(at)),
            by_backends: [row.count(5), row.count(6)],
            has_rings: row.get(6).is_some(),
            wal_bytes: row.get(7).map(|_| row.count(7)),
        })
    }

    pub fn since(self, then: Self) -> CheckpointActivity {
        let [timed, requested, write_us, sync_us, buffers_written] =
            counted(self.counters, then.counters);
        let [buffers_by_backends, through_rings] = counted(self.by_backends, then.by_backends);
        CheckpointActivity {
            timed,
            requested,
            write_us: write_us as f64,
            sync_us: sync_us as f64,
            buffers_written,
            buffers_by_backends,
            buffers_through_rings: self.has_rings.then_some(through_rings),
            wal_bytes: self
                .wal_bytes
                .zip(then.wal_bytes)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after `pg_stat_reset_shared('io')`, all checkpoints since the server's start were in the window.
    #[test]
    fn a_reset_of_the_io_statistics_leaves_the_checkpoints_of_the_window() {
        let reading = |counters, by_backends| CheckpointReading {
            counters,
            by_backends,
            has_rings: true,
            wal_bytes: None,
        };
        let then = reading([4000, 70, 1, 1, 9000], [500, 600]);
        let found = reading([4001, 70, 1, 1, 9010], [3, 0]).since(then);
        let checkpoints = (found.timed, found.requested, found.buffers_written);
        assert_eq!(checkpoints, (1, 0, 10));
        let by_backends = (found.buffers_by_backends, found.buffers_through_rings);
        assert_eq!(by_backends, (3, Some(0)));
    }
}
