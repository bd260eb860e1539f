/* Locks by the C library what datatypes of MPI describe: interleaved ones at the same time, and the same ones not. */
#include <nacre-mpi.h>

#include <stdio.h>
#include <string.h>

static void must(int code, const char *what) {
    if (code != NACRE_OK) {
        fprintf(stderr, "%s: %d, %s\n", what, code, nacre_error_text());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int count, char **arguments) {
    int rank, ranks, sizes[2] = {8, 8}, subsizes[2] = {2, 8}, starts[2] = {2, 0}, lengths[2] = {1, 1}, places[2] = {4, 0};
    MPI_Datatype type, box, backwards;
    nacre_store *store;
    nacre_pattern *mine = NULL, *other = NULL, *none = NULL;
    nacre_lock *lock = NULL, *refused = NULL;
    char text[256];
    size_t length;

    (void)count;
    (void)arguments;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    /* What is described. */
    MPI_Type_vector(4, 1, ranks, MPI_DOUBLE, &type);
    must(nacre_mpi_pattern(type, 8 * rank, 1, &mine), "vector");
    MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &box);
    must(nacre_mpi_pattern(box, 0, 3, &other), "subarray");
    must(nacre_pattern_text(other, text, sizeof text, &length), "text");
    if (rank == 0) printf("%s\n", text);
    must(nacre_pattern_close(other), "close");
    MPI_Type_indexed(2, lengths, places, MPI_INT, &backwards);
    /* No handle, and not NULL either. */
    none = (nacre_pattern *)text;
    if (nacre_mpi_pattern(backwards, 0, 1, &none) != NACRE_UNSUPPORTED || none != NULL) printf("backwards is taken\n");
    if (nacre_mpi_pattern(type, -1, 1, &none) != NACRE_INVALID) printf("a negative displacement is taken\n");
    if (nacre_mpi_pattern_text(type, 0, 1, text, 5, NULL) != NACRE_INVALID) printf("NULL is taken\n");

    /* What is locked. */
    must(nacre_open(getenv("NACRE_STORE"), &store), "open");
    must(nacre_lock_acquire(store, "file", NACRE_STRING, mine, NACRE_LOCK_EXCLUSIVE, -1, &lock), "lock");
    /* All ranks hold their bytes now. */
    MPI_Barrier(MPI_COMM_WORLD);
    must(nacre_mpi_pattern(type, 8 * ((rank + 1) % ranks), 1, &other), "vector");
    if (nacre_lock_acquire(store, "file", NACRE_STRING, other, NACRE_LOCK_EXCLUSIVE, 0, &refused) != NACRE_BUSY) {
        printf("rank %d got what another holds\n", rank);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    must(nacre_lock_release(lock), "release");
    must(nacre_pattern_close(mine), "close");
    must(nacre_pattern_close(other), "close");
    must(nacre_store_close(store), "close");
    MPI_Type_free(&type);
    MPI_Type_free(&box);
    MPI_Type_free(&backwards);
    MPI_Finalize();
    return 0;
}
