//! An index: keys go in, the nearest come out, keys go out again.

use iceformer_core::dci::{Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Rows};

const DIM: usize = 32;
const KEYS: usize = 2000;
const K: usize = 5;

fn main() -> iceformer_core::Result<()> {
    let keys: Vec<f32> = (0..KEYS * DIM).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut index = Index::new(&IndexOptions { metric: Metric::L2, ..IndexOptions::new(DIM) })?;
    index.insert(Rows::new(&keys, DIM)?, None)?;
    let mut scratch = Scratch::new_in(&index, &Memory::system(0)?)?;
    let query = Rows::new(&keys[700 * DIM..701 * DIM], DIM)?;
    let options = QueryOptions::new(K);
    let mut found = [Neighbor { id: 0, score: 0.0 }; K];
    index.query(&mut scratch, query, &options, &mut found, None)?;
    println!("nearest to key 700: {found:?}");
    assert_eq!(found[0].id, 700);
    index.remove(&[700])?;
    index.query_exact(&mut scratch, query, &options, &mut found, None)?;
    println!("without it, by brute force: {found:?}");
    assert_ne!(found[0].id, 700);
    Ok(())
}
