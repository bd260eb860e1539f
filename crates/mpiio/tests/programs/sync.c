/* Writes in atomic mode and asks for the bytes to be on the device, in that mode and after it has ended.
 *
 *   sync FILE
 *
 * Rank 0 prints "flushed A B": how often the file was flushed by each of the two calls. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int flushed;

/* Stands in front of that of the C library, also for this process's libraries. */
int fdatasync(int file) {
    flushed++;
    return (int)syscall(SYS_fdatasync, file);
}

int fsync(int file) {
    flushed++;
    return (int)syscall(SYS_fsync, file);
}

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_atomicity(file, 1), "set_atomicity");
    check(MPI_File_write_at(file, 4 * rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE), "write_at");
    flushed = 0;
    check(MPI_File_sync(file), "sync");
    int first = flushed;
    check(MPI_File_write_at(file, 4 * rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE), "write_at");
    check(MPI_File_set_atomicity(file, 0), "set_atomicity");
    flushed = 0;
    check(MPI_File_sync(file), "sync");
    if (rank == 0) printf("flushed %d %d\n", first, flushed);
    check(MPI_File_close(&file), "close");
    MPI_Finalize();
    return 0;
}
