//! Ctrl-C and SIGTERM while something runs that can be stopped in good order.

use crate::failure::Failure;

/// Runs `work`; the first signal calls `stop`, after which the work has to end soon. The second ends the program.
pub fn stopping<T: Send>(stop: impl Fn(), work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    // Signals are caught before anything is begun, so that none ends the program half-way. Without that the work goes
    // on to its end; only stopping it needs more force.
    let first = {
        let _inside = runtime.enter();
        nacre_daemon::signalled()
    };
    let (done, mut finished) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work();
            drop(done);
            result
        });
        runtime.block_on(async {
            let Ok(first) = first else { return };
            tokio::select! {
                _ = &mut finished => return,
                () = first => stop(),
            }
            let Ok(second) = nacre_daemon::signalled() else { return };
            tokio::select! {
                _ = &mut finished => {}
                () = second => std::process::exit(130),
            }
        });
        match worker.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
