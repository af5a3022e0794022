//! What ranks agree on before they run. If one cannot go on, all end.

use pgassay_ranks::{RankError, World};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::bench::message::{self, Exit};
use crate::exit::PARTIAL;

/// A result that travels; the error is the exit code of a failure that its rank has reported.
type Agreed<T> = Result<T, u8>;

/// The value as bytes.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("settings and results have a length")
}

/// The value that another rank encoded.
pub fn decode<T: DeserializeOwned>(world: &World, bytes: &[u8]) -> T {
    postcard::from_bytes(bytes).unwrap_or_else(|error| {
        message::error(&format!(
            "a message of another rank cannot be read ({error}): do all ranks run the same pgassay?"
        ));
        world.abort(PARTIAL)
    })
}

/// The value, or the end of all ranks.
pub fn or_abort<T>(world: &World, result: Result<T, RankError>) -> T {
    result.unwrap_or_else(|error| {
        message::error(&format!("{error}; the run ends on all ranks"));
        world.abort(PARTIAL)
    })
}

/// Tells for whom rank 0 waits.
pub fn note_waiting(ranks: &[usize]) {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    message::info(&format!("waiting for rank {}", names.join(", ")));
}

/// What rank 0 finds, on all ranks.
pub fn lead<T: Serialize + DeserializeOwned>(
    world: &World,
    find: impl FnOnce() -> Result<T, Exit>,
) -> Result<T, Exit> {
    if world.rank() > 0 {
        let found: Agreed<T> = decode(world, &world.listen());
        return found.map_err(Exit);
    }
    let found = find();
    tell(world, &found);
    found
}

/// What rank 0 decides by what all ranks have, on all ranks; or an error if any rank has one.
pub fn agree<T, U>(
    world: &World,
    own: Result<T, Exit>,
    decide: impl FnOnce(Vec<T>) -> Result<U, Exit>,
) -> Result<U, Exit>
where
    T: Serialize + DeserializeOwned,
    U: Serialize + DeserializeOwned,
{
    let own: Agreed<T> = own.map_err(|Exit(code)| code);
    if world.rank() > 0 {
        world.answer(&encode(&own));
        let decided: Agreed<U> = decode(world, &world.listen());
        return decided.map_err(Exit);
    }
    let others = world.gather(note_waiting);
    let others = others.iter().map(|bytes| decode(world, bytes));
    let all: Agreed<Vec<T>> = std::iter::once(own).chain(others).collect();
    let decided = all.map_err(Exit).and_then(decide);
    tell(world, &decided);
    decided
}

fn tell<T: Serialize>(world: &World, found: &Result<T, Exit>) {
    let found: Result<&T, u8> = found.as_ref().map_err(|Exit(code)| *code);
    let bytes = encode(&found);
    or_abort(world, world.tell(|_| bytes.clone()));
}
