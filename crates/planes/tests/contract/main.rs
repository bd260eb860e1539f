//! The contract of the planes: one suite that every plane has to pass. It needs root and iproute2, for its network
//! namespaces.

mod frames;
mod late;
mod load;
mod plain;
mod world;

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
            tests! {
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
                nothing_admitted_is_lost_and_order_is_kept_under_overload,
                a_full_device_holds_up_no_other,
                what_a_driver_refuses_is_not_lost,
                another_plane_takes_over_what_waits,
                too_much_is_refused_whole,
                joins_and_leaves_cost_nobody_a_datagram,
            }
            late {
                a_slow_device_throttles_nobody_else,
                the_oldest_make_space_for_the_newest,
                what_has_waited_in_a_socket_is_as_old,
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
