/* A thread of rank 0 moves the individual pointer while another one writes at it. The others read whole records or none.
 *
 *   seek FILE TIMES
 *
 * Prints "torn T of N" on rank 1. */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD = 1 << 18 };

static MPI_File file;
static atomic_int stopped;

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *seek(void *nothing) {
    while (!stopped) {
        check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
        check(MPI_File_seek(file, RECORD, MPI_SEEK_SET), "seek");
    }
    return nothing;
}

int main(int argc, char **argv) {
    int rank, provided, torn = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 3 || provided != MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 2);
    int times = atoi(argv[2]);
    char *record = malloc(RECORD);
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_atomicity(file, 1), "set_atomicity");
    pthread_t thread;
    if (rank == 0) pthread_create(&thread, NULL, seek, NULL);
    for (int time = 0; time < times; time++) {
        if (rank == 0) {
            memset(record, 1 + time % 100, RECORD);
            check(MPI_File_write(file, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE), "write");
        } else {
            memset(record, 0, RECORD);
            MPI_Offset place = time % 2 ? RECORD : 0;
            check(MPI_File_read_at(file, place, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE), "read_at");
            /* All bytes as the first. */
            torn += memcmp(record, record + 1, RECORD - 1) != 0;
        }
    }
    if (rank == 0) {
        stopped = 1;
        pthread_join(thread, NULL);
    }
    if (rank == 1) printf("torn %d of %d\n", torn, times);
    check(MPI_File_close(&file), "close");
    MPI_Finalize();
    free(record);
    return 0;
}
