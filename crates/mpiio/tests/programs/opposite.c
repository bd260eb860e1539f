/* Two files, which the ranks access in opposite orders, with non-blocking and collective calls between: nobody may wait for ever.
 *
 *   opposite FILE FILE TIMES
 *
 * Prints "done" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) MPI_Abort(MPI_COMM_WORLD, 2);
    enum { PIECES = 200 };
    char data[PIECES * 8];
    memset(data, 'a' + rank, sizeof data);
    MPI_Datatype view;
    MPI_Type_vector(PIECES, 8, 16, MPI_BYTE, &view);
    MPI_Type_commit(&view);
    MPI_File files[2];
    for (int file = 0; file < 2; file++) {
        check(MPI_File_open(MPI_COMM_WORLD, argv[1 + file], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &files[file]), "open");
        check(MPI_File_set_view(files[file], 0, MPI_BYTE, view, "native", MPI_INFO_NULL), "set_view");
        check(MPI_File_set_atomicity(files[file], 1), "set_atomicity");
    }
    for (int time = 0; time < atoi(argv[3]); time++) {
        MPI_Request requests[4];
        int first = (rank + time) % 2;
        /* The one file before the other, and the other way round. */
        check(MPI_File_iwrite_at(files[first], 0, data, sizeof data, MPI_BYTE, &requests[0]), "iwrite_at");
        check(MPI_File_iwrite_at(files[1 - first], 0, data, sizeof data, MPI_BYTE, &requests[1]), "iwrite_at");
        /* A collective one that is begun by the one rank only when the other has told it that it has begun its own. */
        if (rank % 2 == 0) MPI_Ssend(&time, 1, MPI_INT, rank + 1, 0, MPI_COMM_WORLD);
        check(MPI_File_iwrite_at_all(files[time % 2], 0, data, sizeof data, MPI_BYTE, &requests[2]), "iwrite_at_all");
        if (rank % 2 == 1) MPI_Recv(&time, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(MPI_File_write_at_all(files[1 - time % 2], 0, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE), "write_at_all");
        check(MPI_File_iread_at(files[first], 0, data, sizeof data, MPI_BYTE, &requests[3]), "iread_at");
        check(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE), "waitall");
        for (size_t byte = 1; byte < sizeof data; byte++)
            if (data[byte] != data[0]) check(MPI_ERR_OTHER, "an atomic read");
        memset(data, 'a' + rank, sizeof data);
    }
    for (int file = 0; file < 2; file++) check(MPI_File_close(&files[file]), "close");
    MPI_Type_free(&view);
    if (rank == 0) puts("done");
    MPI_Finalize();
    return 0;
}
