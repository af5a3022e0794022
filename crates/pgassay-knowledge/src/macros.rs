//! Generated function names, which appear in no source file: from bison, flex, `simplehash.h`,
//! `radixtree.h`, `sort_template.h` and macros that define one function per type.
//!
//! See `SH_PREFIX`, `RT_PREFIX` and `ST_SORT` in the sources of 9.6 to 18, `gen_node_support.pl`
//! (16+), `pseudotypes.c` and `tsvector_op.c`. Exact entries of the table take precedence, so these
//! rules can be broad.

/// Prefix of a generated name → the file that generates it.
const PREFIXES: &[(&str, &str)] = &[
    ("base_yy", "src/backend/parser/gram.y"),
    ("core_yy", "src/backend/parser/scan.l"),
    ("scanner_", "src/backend/parser/scan.l"),
    ("plpgsql_yy", "src/pl/plpgsql/src/pl_gram.y"),
    ("boot_yy", "src/backend/bootstrap/bootparse.y"),
    ("jsonpath_yy", "src/backend/utils/adt/jsonpath_gram.y"),
    ("replication_yy", "src/backend/replication/repl_gram.y"),
    ("syncrep_yy", "src/backend/replication/syncrep_gram.y"),
    ("GUC_yy", "src/backend/utils/misc/guc-file.l"),
    ("tuplehash_", "src/backend/executor/execGrouping.c"),
    ("pagetable_", "src/backend/nodes/tidbitmap.c"),
    ("memoize_", "src/backend/executor/nodeMemoize.c"),
    ("resultcache_", "src/backend/executor/nodeResultCache.c"),
    ("saophash_", "src/backend/executor/execExprInterp.c"),
    ("nsphash_", "src/backend/catalog/namespace.c"),
    ("collation_cache_", "src/backend/utils/adt/pg_locale.c"),
    ("derives_", "src/backend/optimizer/path/equivclass.c"),
    ("MCVHashTable_", "src/backend/utils/adt/selfuncs.c"),
    (
        "backup_file_",
        "src/backend/backup/basebackup_incremental.c",
    ),
    ("blockreftable_", "src/common/blkreftable.c"),
    (
        "pgstat_entry_ref_hash_",
        "src/backend/utils/activity/pgstat_shmem.c",
    ),
    ("pgstat_snapshot_", "src/backend/utils/activity/pgstat.c"),
    ("local_ts_", "src/backend/access/common/tidstore.c"),
    ("shared_ts_", "src/backend/access/common/tidstore.c"),
    ("qsort_tuple", "src/backend/utils/sort/tuplesort.c"),
    ("qsort_ssup", "src/backend/utils/sort/tuplesort.c"),
    (
        "qsort_interruptible",
        "src/backend/utils/sort/qsort_interruptible.c",
    ),
    ("pg_qsort", "src/port/qsort.c"),
    ("qsort_arg", "src/port/qsort_arg.c"),
    (
        "sort_checkpoint_bufferids",
        "src/backend/storage/buffer/bufmgr.c",
    ),
    (
        "sort_pending_writebacks",
        "src/backend/storage/buffer/bufmgr.c",
    ),
    ("pg_comp_crc32c", "src/port/pg_crc32c_sse42.c"),
    ("_copy", "src/backend/nodes/copyfuncs.c"),
    ("_equal", "src/backend/nodes/equalfuncs.c"),
    ("_out", "src/backend/nodes/outfuncs.c"),
    ("_read", "src/backend/nodes/readfuncs.c"),
    ("_jumble", "src/backend/nodes/queryjumblefuncs.c"),
    ("tsvector_", "src/backend/utils/adt/tsvector_op.c"),
    ("tsquery_", "src/backend/utils/adt/tsquery_op.c"),
];

/// Suffix of a generated name → the file that generates it.
const SUFFIXES: &[(&str, &str)] = &[
    ("_handler_in", "src/backend/utils/adt/pseudotypes.c"),
    ("_handler_out", "src/backend/utils/adt/pseudotypes.c"),
    ("trigger_in", "src/backend/utils/adt/pseudotypes.c"),
    ("trigger_out", "src/backend/utils/adt/pseudotypes.c"),
];

/// The file that generates a name.
pub(super) fn path(symbol: &str) -> Option<&'static str> {
    let by_prefix = PREFIXES
        .iter()
        .find(|(prefix, _)| symbol.starts_with(prefix));
    let by_suffix = || SUFFIXES.iter().find(|(suffix, _)| symbol.ends_with(suffix));
    if let Some((_, path)) = by_prefix.or_else(by_suffix) {
        return Some(path);
    }
    // anyarray_in, pg_node_tree_recv: macros define four functions for each pseudo-type.
    let pseudo_type =
        symbol.starts_with("any") || symbol.starts_with("pg_") || symbol.starts_with("internal");
    let of_type = ["_in", "_out", "_recv", "_send"]
        .iter()
        .any(|ending| symbol.ends_with(ending));
    (pseudo_type && of_type).then_some("src/backend/utils/adt/pseudotypes.c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_map_to_the_generating_file() {
        assert_eq!(path("base_yyparse"), Some("src/backend/parser/gram.y"));
        assert_eq!(path("core_yylex"), Some("src/backend/parser/scan.l"));
        assert_eq!(
            path("tuplehash_insert_hash"),
            Some("src/backend/executor/execGrouping.c")
        );
        assert_eq!(
            path("anyarray_recv"),
            Some("src/backend/utils/adt/pseudotypes.c")
        );
        assert_eq!(
            path("index_am_handler_in"),
            Some("src/backend/utils/adt/pseudotypes.c")
        );
        assert_eq!(path("main"), None);
    }
}
