//! What keeps a suggested fix from doing harm, and what is no evidence.

use crate::catalog_common::{execute, on_each, open, start};

/// Regression: the only index of a foreign key was to be dropped; and while an index for one was being built, a second
/// one was to be created.
#[test]
fn the_only_index_of_a_foreign_key_is_known_and_one_that_is_being_built_serves_it() {
    on_each(&["9.6", "12", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(
            &mut connection,
            "create table parent (id int primary key); insert into parent values (1); \
             create table child (alone int references parent, twice int references parent, \
               failed int references parent, note text); \
             create index child_alone on child (alone, note); \
             create index child_note on child (note, alone); \
             create index child_twice on child (twice, note); \
             create index child_twice_again on child (twice, failed); \
             insert into child values (1, 1, 1), (1, 1, 1)",
        );
        let build = "create unique index concurrently child_failed on child (failed)";
        connection.execute(build).expect_err("there are duplicates");
        let catalog = open(server).finish().catalog.expect("a catalog");
        assert_eq!(catalog.uncovered_foreign_keys, [], "{version}");
        let indexes = catalog.indexes.iter();
        let keys = indexes.filter_map(|it| Some((&*it.relation.name, it.foreign_key.as_deref()?)));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        // Of two that were never used, one is needed.
        let needed = [
            ("child_alone", "child_alone_fkey"),
            ("child_twice", "child_twice_fkey"),
        ];
        assert_eq!(keys, needed, "{version}");
    });
}
