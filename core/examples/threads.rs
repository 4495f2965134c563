//! Threads: of one call, which starts them, and parts of a session on threads of the caller. The bits are the same.

use iceformer_core::attention::{Attend, AttentionOptions, Problem, Session, SessionOptions, attention};
use iceformer_core::mem::{Memory, Tensor, TensorMut};

const HEADS: usize = 4;
const ROWS: usize = 1024;
const DIM: usize = 64;
const SHAPE: [usize; 4] = [1, HEADS, ROWS, DIM];

fn main() -> iceformer_core::Result<()> {
    let x: Vec<f32> = (0..HEADS * ROWS * DIM).map(|i| (i as f32 * 0.013).sin()).collect();
    let t = Tensor::new(&x, SHAPE)?;
    let mut called = [(); 2].map(|()| vec![0.0; x.len()]);
    for (out, num_threads) in called.iter_mut().zip([1, 4]) {
        let options = AttentionOptions { num_threads, ..AttentionOptions::default() };
        let problem = Problem::new(t, t, t, TensorMut::new(out, SHAPE)?).causal().options(options);
        attention(&problem, &Memory::system(0)?)?;
    }
    assert!(called[0] == called[1]);

    let mut session = Session::new(&SessionOptions::new([HEADS, HEADS], DIM, ROWS))?;
    session.append(t, t)?;
    session.commit()?;
    let mut attended = vec![0.0; x.len()];
    let out = TensorMut::new(&mut attended, SHAPE)?;
    let (session, out, parts) = (&session, &out, 3);
    std::thread::scope(|scope| {
        let part = move |ith| session.attend(&Attend::new(t, out).part(ith, parts), &Memory::system(0)?).map(|_| ());
        let threads: Vec<_> = (0..parts).map(|ith| scope.spawn(move || part(ith))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    println!("one thread, four threads and three parts of a session agree: {}", attended == called[0]);
    Ok(())
}
