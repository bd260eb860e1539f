/* Rank 0 writes a strided vector and the last rank bytes in its gaps, by one collective call, again and again. None of the bytes in the gaps
 * may be lost.
 *
 *   gaps FILE TIMES [HINT VALUE [PIECES]]
 *
 * Prints "lost L of N" on the last rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    /* What was printed right before an abort, MPICH's launcher may lose. */
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    enum { STRIDE = 1024, WORDS = 512 };
    int rank, size, lost = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int times = atoi(argv[2]), pieces = argc > 5 ? atoi(argv[5]) : 1000;
    MPI_Info info = MPI_INFO_NULL;
    if (argc > 4) {
        MPI_Info_create(&info);
        MPI_Info_set(info, argv[3], argv[4]);
    }
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file), "open");
    check(MPI_File_set_atomicity(file, 1), "set_atomicity");
    MPI_Datatype vector;
    MPI_Type_vector(pieces, 1, STRIDE, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    check(MPI_File_set_view(file, 0, MPI_INT, rank == 0 ? vector : MPI_INT, "native", MPI_INFO_NULL), "set_view");
    int *mine = malloc((size_t)pieces * sizeof *mine), found[WORDS];
    srand(1);
    for (int time = 1; time <= times; time++) {
        for (int word = 0; word < pieces; word++) mine[word] = time;
        MPI_Offset place = rank == 0 ? 0 : (MPI_Offset)STRIDE * (rand() % (pieces / 2)) + 100;
        int count = rank == 0 ? pieces : rank == size - 1 ? WORDS : 0;
        check(MPI_File_write_at_all(file, place, mine, count, MPI_INT, MPI_STATUS_IGNORE), "write_at_all");
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == size - 1) {
            check(MPI_File_read_at(file, place, found, WORDS, MPI_INT, MPI_STATUS_IGNORE), "read_at");
            int is_lost = 0;
            for (int word = 0; word < WORDS; word++) is_lost |= found[word] != time;
            lost += is_lost;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == size - 1) printf("lost %d of %d\n", lost, times);
    MPI_Type_free(&vector);
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
    check(MPI_File_close(&file), "close");
    MPI_Finalize();
    free(mine);
    return 0;
}
