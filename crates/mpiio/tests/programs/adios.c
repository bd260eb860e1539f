/* The ranks write an array by ADIOS, a block of its columns each, and read some of its rows, each of which has pieces of all ranks. ADIOS
 * has no call for the atomic mode: "nacre mpirun --atomic" turns it on.
 *
 *   adios FILE
 *
 * Prints "done" on rank 0. */
#include <adios.h>
#include <adios_read.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 128, COLUMNS = 16 };

static int rank, size;

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "rank %d: not so: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define EXPECT(condition) expect(condition, #condition)

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    int *mine = malloc(ROWS * COLUMNS * sizeof *mine), *seen = malloc(ROWS * COLUMNS * size * sizeof *seen);
    char part[64], all[64], place[64];
    snprintf(part, sizeof part, "%d,%d", ROWS, COLUMNS);
    snprintf(all, sizeof all, "%d,%d", ROWS, COLUMNS * size);
    snprintf(place, sizeof place, "0,%d", COLUMNS * rank);

    int64_t group = 0, file = 0;
    EXPECT(adios_init_noxml(MPI_COMM_WORLD) == 0);
    adios_set_max_buffer_size(8);
    EXPECT(adios_declare_group(&group, "results", "", adios_stat_no) == 0);
    EXPECT(adios_select_method(group, "MPI", "", "") == 0);
    EXPECT(adios_define_var(group, "records", "", adios_integer, part, all, place) != 0);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            mine[row * COLUMNS + column] = 1000 * row + COLUMNS * rank + column;
    EXPECT(adios_open(&file, "results", argv[1], "w", MPI_COMM_WORLD) == 0);
    uint64_t total = 0;
    EXPECT(adios_group_size(file, ROWS * COLUMNS * sizeof *mine, &total) == 0);
    EXPECT(adios_write(file, "records", mine) == 0);
    EXPECT(adios_close(file) == 0);
    MPI_Barrier(MPI_COMM_WORLD);

    EXPECT(adios_read_init_method(ADIOS_READ_METHOD_BP, MPI_COMM_WORLD, "verbose=1") == 0);
    ADIOS_FILE *stored = adios_read_open_file(argv[1], ADIOS_READ_METHOD_BP, MPI_COMM_WORLD);
    EXPECT(stored != NULL);
    uint64_t start[2] = {(uint64_t)rank * ROWS / size, 0}, count[2] = {0, (uint64_t)COLUMNS * size};
    count[0] = (uint64_t)(rank + 1) * ROWS / size - start[0];
    ADIOS_SELECTION *rows = adios_selection_boundingbox(2, start, count);
    EXPECT(adios_schedule_read(stored, rows, "records", 0, 1, seen) == 0);
    EXPECT(adios_perform_reads(stored, 1) == 0);
    for (uint64_t row = 0; row < count[0]; row++)
        for (uint64_t column = 0; column < count[1]; column++)
            EXPECT(seen[row * count[1] + column] == (int)(1000 * (start[0] + row) + column));
    adios_selection_delete(rows);
    EXPECT(adios_read_close(stored) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT(adios_read_finalize_method(ADIOS_READ_METHOD_BP) == 0);
    EXPECT(adios_finalize(rank) == 0);
    if (rank == 0) puts("done");
    free(mine);
    free(seen);
    MPI_Finalize();
    return 0;
}
