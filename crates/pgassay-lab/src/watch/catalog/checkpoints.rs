//! Differences of the counters of checkpoints.

use pgassay_record::activity::CheckpointActivity;

use super::counts::counted;
use super::reader::CatalogReader;

/// Timed, requested, write and sync time in microseconds, buffers written, buffers by backends.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckpointReading([u64; 6]);

impl CheckpointReading {
    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let sql = match reader.version {
            ..170_000 => {
                "select checkpoints_timed, checkpoints_req, (checkpoint_write_time * 1e3)::bigint, \
                 (checkpoint_sync_time * 1e3)::bigint, buffers_checkpoint, buffers_backend \
                 from pg_stat_bgwriter"
                    .to_owned()
            }
            // 17: a view of their own, with those of a standby; writes of backends in pg_stat_io.
            version => {
                // 18: bytes instead of blocks, since one write can have several blocks.
                let written = if version >= 180_000 {
                    "write_bytes / current_setting('block_size')::bigint"
                } else {
                    "writes"
                };
                format!(
                    "select case when r then restartpoints_timed else num_timed end, \
                     case when r then restartpoints_req else num_requested end, \
                     (write_time * 1e3)::bigint, (sync_time * 1e3)::bigint, buffers_written, \
                     (select sum({written})::bigint from pg_stat_io \
                       where object = 'relation' and backend_type not in \
                         ('checkpointer', 'background writer', 'standalone backend', 'startup')) \
                     from pg_stat_checkpointer, pg_is_in_recovery() r"
                )
            }
        };
        let rows = reader.rows("checkpoints", &sql)?;
        let row = rows.first()?;
        Some(Self(std::array::from_fn(|at| row.count(at))))
    }

    pub fn since(self, then: Self) -> CheckpointActivity {
        let [
            timed,
            requested,
            write_us,
            sync_us,
            buffers_written,
            buffers_by_backends,
        ] = counted(self.0, then.0);
        CheckpointActivity {
            timed,
            requested,
            write_us: write_us as f64,
            sync_us: sync_us as f64,
            buffers_written,
            buffers_by_backends,
        }
    }
}
