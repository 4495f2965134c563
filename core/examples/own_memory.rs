//! All work memory in one array of the caller: the size is known before, and nothing else is allocated.

use iceformer_core::attention::{Problem, attention, required};
use iceformer_core::mem::{Memory, Tensor, TensorMut};
use std::ptr::NonNull;

/// As much as the call below takes, and as aligned as memory has to be.
#[repr(align(64))]
struct Room([u8; 2 << 20]);

fn main() -> iceformer_core::Result<()> {
    let (rows, keys, dim) = (8, 1024, 32);
    let x: Vec<f32> = (0..keys * dim).map(|i| (i as f32 * 0.11).cos()).collect();
    let mut out = vec![0.0; rows * dim];
    let kv = Tensor::new(&x, [1, 1, keys, dim])?;
    let q = Tensor::new(&x[(keys - rows) * dim..], [1, 1, rows, dim])?;
    let problem = Problem::new(q, kv, kv, TensorMut::new(&mut out, [1, 1, rows, dim])?).causal();
    let need = required(&problem)?;
    println!("needs {} bytes, aligned to {}", need.bytes, need.align);
    let mut room = Box::new(Room([0; 2 << 20]));
    assert!(need.bytes <= room.0.len());
    // SAFETY: the array outlives the memory, and nobody else uses it.
    let memory = unsafe { Memory::region(NonNull::from(&mut room.0).cast(), need.bytes)? };
    println!("{:?}", attention(&problem, &memory)?.mode);
    Ok(())
}
