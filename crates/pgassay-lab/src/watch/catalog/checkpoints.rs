//! Differences of the counters of checkpoints.

use pgassay_record::activity::CheckpointActivity;

use super::counts::counted;
use super::reader::CatalogReader;

/// Timed, requested, write and sync time in microseconds, buffers written, buffers by backends.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckpointReading([u64; 6]);

/// Writes of backends to shared buffers' blocks, without those through ring buffers.
fn normal_writes(written: &str) -> String {
    format!(
        "select sum({written})::bigint from pg_stat_io \
         where object = 'relation' and context = 'normal' and backend_type not in \
           ('checkpointer', 'background writer', 'standalone backend', 'startup')"
    )
}

impl CheckpointReading {
    pub fn read(reader: &mut CatalogReader) -> Option<Self> {
        let sql = match reader.version {
            ..160_000 => {
                "select checkpoints_timed, checkpoints_req, (checkpoint_write_time * 1e3)::bigint, \
                 (checkpoint_sync_time * 1e3)::bigint, buffers_checkpoint, buffers_backend \
                 from pg_stat_bgwriter"
                    .to_owned()
            }
            // 16: writes of backends in pg_stat_io. Those through ring buffers, as of COPY, VACUUM and
            // large scans, have contexts other than normal.
            160_000..170_000 => format!(
                "select checkpoints_timed, checkpoints_req, (checkpoint_write_time * 1e3)::bigint, \
                 (checkpoint_sync_time * 1e3)::bigint, buffers_checkpoint, ({}) from pg_stat_bgwriter",
                normal_writes("writes")
            ),
            // 17: a view for checkpoints, with those of a standby.
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
                     ({}) from pg_stat_checkpointer, pg_is_in_recovery() r",
                    normal_writes(written)
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
