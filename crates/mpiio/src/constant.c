/* The constants of the MPI library: macros and enumerators, which differ from one library to the next. */
#include <mpi.h>

/* Otherwise it is MPICH, or derived from it. */
#ifdef OPEN_MPI
const int nacre_mpi_is_open_mpi = 1;
#else
const int nacre_mpi_is_open_mpi = 0;
#endif

/* In the order of `Combiner` in mpi.rs. */
const int nacre_mpi_combiners[13] = {
    MPI_COMBINER_NAMED,         MPI_COMBINER_DUP,     MPI_COMBINER_CONTIGUOUS,    MPI_COMBINER_VECTOR,
    MPI_COMBINER_HVECTOR,       MPI_COMBINER_INDEXED, MPI_COMBINER_HINDEXED,      MPI_COMBINER_INDEXED_BLOCK,
    MPI_COMBINER_HINDEXED_BLOCK, MPI_COMBINER_STRUCT, MPI_COMBINER_SUBARRAY,      MPI_COMBINER_DARRAY,
    MPI_COMBINER_RESIZED,
};

/* Predefined, by another name. */
const int nacre_mpi_combiners_f90[3] = {MPI_COMBINER_F90_REAL, MPI_COMBINER_F90_COMPLEX, MPI_COMBINER_F90_INTEGER};

const int nacre_mpi_order_fortran = MPI_ORDER_FORTRAN;
const int nacre_mpi_distribute_none = MPI_DISTRIBUTE_NONE;
const int nacre_mpi_distribute_block = MPI_DISTRIBUTE_BLOCK;
const int nacre_mpi_distribute_cyclic = MPI_DISTRIBUTE_CYCLIC;
const int nacre_mpi_distribute_default = MPI_DISTRIBUTE_DFLT_DARG;

const int nacre_mpi_mode_rdonly = MPI_MODE_RDONLY;
const int nacre_mpi_mode_wronly = MPI_MODE_WRONLY;
const int nacre_mpi_mode_sequential = MPI_MODE_SEQUENTIAL;
const int nacre_mpi_mode_create = MPI_MODE_CREATE;
const int nacre_mpi_mode_excl = MPI_MODE_EXCL;
const int nacre_mpi_mode_delete_on_close = MPI_MODE_DELETE_ON_CLOSE;
const int nacre_mpi_seek_set = MPI_SEEK_SET;
const int nacre_mpi_seek_cur = MPI_SEEK_CUR;

const int nacre_mpi_success = MPI_SUCCESS;
const int nacre_mpi_err_io = MPI_ERR_IO;
const int nacre_mpi_err_no_space = MPI_ERR_NO_SPACE;
const int nacre_mpi_err_quota = MPI_ERR_QUOTA;
const int nacre_mpi_comm_type_shared = MPI_COMM_TYPE_SHARED;

const int nacre_mpi_max_datarep_string = MPI_MAX_DATAREP_STRING;
const int nacre_mpi_max_error_string = MPI_MAX_ERROR_STRING;
MPI_Datatype nacre_mpi_byte(void) { return MPI_BYTE; }
MPI_Datatype nacre_mpi_datatype_null(void) { return MPI_DATATYPE_NULL; }
MPI_Comm nacre_mpi_comm_world(void) { return MPI_COMM_WORLD; }
MPI_Info nacre_mpi_info_null(void) { return MPI_INFO_NULL; }
MPI_Errhandler nacre_mpi_errors_return(void) { return MPI_ERRORS_RETURN; }
MPI_Status *nacre_mpi_status_ignore(void) { return MPI_STATUS_IGNORE; }
