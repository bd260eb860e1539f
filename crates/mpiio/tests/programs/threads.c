/* Two threads of each rank use two files of two communicators at the same time.
 *
 *   threads FILE FILE TIMES
 *
 * Prints "done" on rank 0. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static MPI_File files[2];
static int rank, size, times;

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *use(void *of) {
    MPI_File file = *(MPI_File *)of;
    for (int time = 0; time < times; time++) {
        int mine = 1000 * rank + time, next = (rank + 1) % size, found = -1;
        check(MPI_File_set_atomicity(file, 1), "set_atomicity");
        check(MPI_File_write_at_all(file, 4 * rank, &mine, 1, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
        check(MPI_File_read_at_all(file, 4 * next, &found, 1, MPI_INT, MPI_STATUS_IGNORE), "read_at_all");
        if (found != 1000 * next + time) check(MPI_ERR_OTHER, "the record of another rank");
        check(MPI_File_set_atomicity(file, 0), "set_atomicity");
        /* Nobody writes while others still read. */
        check(MPI_File_sync(file), "sync");
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided;
    pthread_t threads[2];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 4 || provided != MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 2);
    times = atoi(argv[3]);
    for (int file = 0; file < 2; file++) {
        MPI_Comm communicator;
        MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
        check(MPI_File_open(communicator, argv[1 + file], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &files[file]), "open");
        /* The file does not need it any longer. */
        MPI_Comm_free(&communicator);
    }
    for (int file = 0; file < 2; file++) pthread_create(&threads[file], NULL, use, &files[file]);
    for (int file = 0; file < 2; file++) pthread_join(threads[file], NULL);
    for (int file = 0; file < 2; file++) check(MPI_File_close(&files[file]), "close");
    if (rank == 0) puts("done");
    MPI_Finalize();
    return 0;
}
