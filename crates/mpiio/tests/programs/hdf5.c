/* The ranks write interleaved columns of a dataset by parallel HDF5, each on its own and all together; then all of them write the same
 * columns together, again and again, and read what one of them wrote.
 *
 *   hdf5 FILE TIMES
 *
 * Prints "torn T of N" on rank 0. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLUMNS = 16 };

static int rank, size;

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "rank %d: not so: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define EXPECT(condition) expect(condition, #condition)

/* Selects every so many columns, from the first one on. */
static void select_columns(hid_t space, int first, int stride) {
    hsize_t start[2] = {0, first}, step[2] = {1, stride}, count[2] = {ROWS, COLUMNS};
    EXPECT(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, step, count, NULL) >= 0);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int times = atoi(argv[2]), torn = 0;
    hsize_t all[2] = {ROWS, (hsize_t)COLUMNS * size}, part[2] = {ROWS, COLUMNS};
    int *mine = malloc(ROWS * COLUMNS * sizeof *mine), *seen = malloc(ROWS * COLUMNS * sizeof *seen);

    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    EXPECT(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0);
    hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
    EXPECT(file >= 0);
    hbool_t is_atomic = 0;
    EXPECT(H5Fset_mpi_atomicity(file, 1) >= 0);
    EXPECT(H5Fget_mpi_atomicity(file, &is_atomic) >= 0);
    EXPECT(is_atomic);
    hid_t space = H5Screate_simple(2, all, NULL), memory = H5Screate_simple(2, part, NULL);
    hid_t data = H5Dcreate2(file, "records", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT(data >= 0);
    hid_t together = H5Pcreate(H5P_DATASET_XFER);
    EXPECT(H5Pset_dxpl_mpio(together, H5FD_MPIO_COLLECTIVE) >= 0);

    for (int is_collective = 0; is_collective < 2; is_collective++) {
        hid_t transfer = is_collective ? together : H5P_DEFAULT;
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) mine[cell] = 100 * cell + 10 * is_collective + rank;
        select_columns(space, rank, size);
        EXPECT(H5Dwrite(data, H5T_NATIVE_INT, memory, space, transfer, mine) >= 0);
        MPI_Barrier(MPI_COMM_WORLD);
        int next = (rank + 1) % size;
        select_columns(space, next, size);
        EXPECT(H5Dread(data, H5T_NATIVE_INT, memory, space, transfer, seen) >= 0);
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) EXPECT(seen[cell] == 100 * cell + 10 * is_collective + next);
        MPI_Barrier(MPI_COMM_WORLD);
    }

    select_columns(space, 0, size);
    for (int time = 0; time < times; time++) {
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) mine[cell] = size * time + rank;
        EXPECT(H5Dwrite(data, H5T_NATIVE_INT, memory, space, together, mine) >= 0);
        MPI_Barrier(MPI_COMM_WORLD);
        EXPECT(H5Dread(data, H5T_NATIVE_INT, memory, space, together, seen) >= 0);
        int mixed = seen[0] / size != time;
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) mixed |= seen[cell] != seen[0];
        torn += mixed;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    EXPECT(H5Pclose(together) >= 0 && H5Dclose(data) >= 0 && H5Sclose(memory) >= 0 && H5Sclose(space) >= 0);
    EXPECT(H5Fclose(file) >= 0 && H5Pclose(access) >= 0);
    if (rank == 0) printf("torn %d of %d\n", torn, times);
    free(mine);
    free(seen);
    MPI_Finalize();
    return 0;
}
