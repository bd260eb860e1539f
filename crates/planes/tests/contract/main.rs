//! The contract of the planes: one suite that every plane has to pass. It needs root and iproute2, for its network
//! namespaces.

mod frames;
mod late;
mod load;
mod plain;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_planes::plane::PlaneKind;

/// A test of a plane, and its name.
type SmallTest = (&'static str, fn(PlaneKind));

/// Runs small tests of a plane, several at once: nearly all of their time they wait for the kernel, which makes and removes
/// their networks. The thread of each has its name.
fn run_small(kind: PlaneKind, tests: &[SmallTest]) {
    const AT_ONCE: usize = 4;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&(name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let thread = std::thread::Builder::new().name(name.to_owned());
                    if thread.spawn(move || test(kind)).unwrap().join().is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "these failed: {failed:?}");
}

/// Makes one test of small ones.
macro_rules! small {
    ($plane:ident: $($module:ident { $($test:ident),* $(,)? })*) => {
        #[test]
        fn small_tests() {
            crate::run_small(
                nacre_planes::plane::PlaneKind::$plane,
                &[$($((stringify!($test), crate::$module::$test as fn(nacre_planes::plane::PlaneKind))),*),*],
            );
        }
    };
}

/// Makes tests of functions that take the plane to test.
macro_rules! tests {
    ($plane:ident: $($module:ident { $($test:ident),* $(,)? })*) => {
        $($(#[test]
        fn $test() {
            crate::$module::$test(nacre_planes::plane::PlaneKind::$plane);
        })*)*
    };
}

/// The suite, for each plane.
macro_rules! contract {
    ($($name:ident = $plane:ident),* $(,)?) => {
        $(mod $name {
            small! {
                $plane:
                plain {
                    everybody_but_the_sender_gets_one_copy,
                    members_of_both_families_are_one_group,
                    who_wants_an_echo_gets_one,
                    non_members_are_refused,
                    what_is_for_the_reflector_is_copied_to_nobody,
                    what_is_longer_than_a_path_takes_is_undeliverable_there_alone,
                    groups_share_a_port,
                    rates_are_counted_in_copies,
                    leaving_and_joining_again_fills_no_bucket,
                    nothing_is_copied_for_those_without_the_right_to_send,
                    a_group_has_a_rate_of_its_own,
                    numbered_groups_number,
                    a_device_that_is_down_holds_up_nobody_else,
                    a_port_that_nobody_listens_on_disturbs_nobody,
                    copies_keep_the_type_of_service_and_are_not_to_be_fragmented,
                    copies_are_made_by_whom_the_plane_is_named_after,
                }
                load {
                    a_full_device_holds_up_no_other,
                    another_plane_takes_over_what_waits,
                    too_much_is_refused_whole,
                }
                late {
                    the_oldest_make_space_for_the_newest,
                }
            }
            tests! {
                $plane:
                load {
                    nothing_admitted_is_lost_and_order_is_kept_under_overload,
                    what_a_driver_refuses_is_not_lost,
                    joins_and_leaves_cost_nobody_a_datagram,
                }
                late {
                    a_slow_device_throttles_nobody_else,
                    what_has_waited_in_a_socket_is_as_old,
                    what_comes_too_fast_is_refused_before_it_waits,
                    overload_leaves_no_backlog_in_a_kernel_plane,
                    neighbours_behind_a_full_device_stay_known,
                }
            }
        })*
    };
}

contract! {
    sendto = Sendto,
    batch = Batch,
    ring = Ring,
    kernel = Kernel,
    xdp = Xdp,
}
