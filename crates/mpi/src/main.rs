mod engine; mod job; mod network; mod spill;
use mpi::traits::*;
use nacre_walk::algorithm::{self, Algorithm};
use nacre_walk::*;
use std::sync::atomic::AtomicBool;
#[derive(Default)]
struct Count(u64);
impl Visitor for Count {
    type State = ();
    fn enter(&mut self, _: &Opened<'_, ()>) -> Option<()> { Some(()) }
    fn visit(&mut self, _: &Entry<'_, ()>) -> Verdict { self.0 += 1; Verdict::Descend }
    fn failed(&mut self, e: WalkError) { eprintln!("{e}"); }
}
fn main() {
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled).unwrap();
    let world = universe.world();
    let (rank, ranks) = (world.rank() as u32, world.size() as u32);
    let mut args = std::env::args().skip(1);
    let algorithm: Algorithm = args.next().unwrap().parse().unwrap();
    let threads: usize = args.next().unwrap().parse().unwrap();
    let root = args.next().unwrap();
    let mut walk = Walk::new(Options { threads: threads.try_into().unwrap(), ..Options::default() });
    walk.add_root(root.as_ref()).unwrap();
    let mut visitors: Vec<Count> = (0..threads).map(|_| Count::default()).collect();
    let mut entries = vec![];
    if rank == 0 {
        walk.start(0, &mut visitors[0]).unwrap();
        if algorithm == Algorithm::Cp { entries = walk.queue().take(1); }
    }
    let mut options = algorithm::Options::new(algorithm, ranks, 1);
    options.count_peers = true;
    let mut network = network::Network::new(world.duplicate());
    let flag = AtomicBool::new(false);
    let began = std::time::Instant::now();
    let phase = job::run_phase(&mut network, &mut walk, &mut visitors, &options, entries, &job::Until { interrupted: &flag, checkpoint_at: None }).unwrap();
    let n: u64 = visitors.iter().map(|v| v.0).sum();
    let cpu = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = cpu.split(' ').collect();
    println!("{rank}: {n} entries {:?} sent {:?} requests {} bytes {:?} comm {:?} cpu {}+{}", began.elapsed(), phase.counters.sent, phase.counters.requests, network.sent_bytes(), phase.communication, f[13], f[14]);
}
